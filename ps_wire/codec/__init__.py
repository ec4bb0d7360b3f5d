"""Values and tensors to messages and payload bytes, and back. Nothing is pickled, evaluated or imported."""
