"""Optimizers and schedulers over any number of owners."""
