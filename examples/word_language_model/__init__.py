"""A word language model whose embedding table and decoder live elsewhere; ``python -m examples.word_language_model``.

A member of a group that is started with ``allow=["examples.word_language_model.model"]`` may host both.
"""
