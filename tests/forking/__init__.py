"""Processes that are forked from one which has imported everything: each is there in milliseconds, not in seconds."""
