"""Random numbers and autocast regions of a request."""
