"""Checkpoints of some owners become checkpoints of another number of owners, with the same rows of tables.

Everything raises `CheckpointError` for checkpoints that do not belong together, or do not fit what was asked for.
"""
