"""Requests: the table of operations, their handlers, and how one request is run."""
