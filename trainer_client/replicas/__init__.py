"""Local copies of modules: pulled from their owner, trained here, and pushed back as gradients."""
