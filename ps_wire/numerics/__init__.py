"""How torch computes: autocast, seeds, walks of the autograd graph, and the validation of optimizers."""
