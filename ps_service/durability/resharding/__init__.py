"""Checkpoints of some owners become checkpoints of another number of owners, with the same rows of tables."""
