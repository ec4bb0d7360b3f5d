"""The snippets and commands of pages, run as a reader would run them."""
