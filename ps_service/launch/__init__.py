"""Owners and trainers on this machine, each a process that does not outlive the one that starts it.

`ps-service run` and the examples start theirs with it. Nothing here imports torch.
"""
