"""Trainers whose gradients a parameter server gathers, so that it steps once for all of them."""
