"""Codecs that make tensors smaller before they are sent, the choice between them, and error feedback.

A codec is an immutable value with plain parameters. A message names it by its name and these parameters, and never
carries code. The receiver takes shape and dtype of the result from its own tensor.
"""
