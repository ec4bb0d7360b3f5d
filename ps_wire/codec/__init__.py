"""Encodes values and tensors as messages and payload bytes, and decodes them. Nothing is pickled or evaluated."""
