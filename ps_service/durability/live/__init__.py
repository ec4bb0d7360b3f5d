"""Checkpoints of an owner with a log, written piece by piece while trainers go on."""
