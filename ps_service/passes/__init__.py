"""Passes: contexts, recorded calls, their backward, and the gradients."""
