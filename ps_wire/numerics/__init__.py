"""Settings and state of torch: autocast, seeds, walks of the autograd graph, and validation of optimizers."""
