"""The recommender on a Ray cluster of three machines, one of which loses its power."""
