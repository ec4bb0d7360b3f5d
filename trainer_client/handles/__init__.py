"""Handles: what a trainer holds of the objects on owners, and calls through them."""
