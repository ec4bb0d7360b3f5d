"""Optimizers, schedulers, their steps and their state."""
