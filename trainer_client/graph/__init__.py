"""Remote calls in torch's autograd graph."""
