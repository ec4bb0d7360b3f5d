"""Shows how a training goes on: a bar with its numbers, and the same in TensorBoard."""
