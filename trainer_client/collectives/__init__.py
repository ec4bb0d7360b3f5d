"""Communicators: trainers that exchange values through an owner, and wait for each other."""
