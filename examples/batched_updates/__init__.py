"""A parameter server that collects the gradients of all trainers and takes one step with their mean."""
