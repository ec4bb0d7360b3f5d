"""A word language model with embedding table and decoder on an owner; ``python -m examples.word_language_model``.

A member of a group that is started with ``allow=["examples.word_language_model.model"]`` may host both.
"""
