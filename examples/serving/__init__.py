"""A recommender that is trained, exported and served at once, with a page that shows it."""
