"""Communicators: trainers that exchange values through this owner, and wait for each other."""
