"""The compute threads, and the order in which requests of several trainers run in them."""
