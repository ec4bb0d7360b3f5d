"""Handles: a trainer's references to objects on owners, and calls through them."""
