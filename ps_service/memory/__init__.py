"""Limits on the memory that messages, passes and results hold, and trimming of malloc's free memory."""
