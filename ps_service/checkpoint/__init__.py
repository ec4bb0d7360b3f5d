"""Checkpoint: an owner's state in its data directory, written when it drains and read when it starts.

durable          files and folders that are there after a power failure, or not at all
manifest         what a checkpoint consists of, and the hash of each file
store            the data directory: one checkpoint after the other, and a lock
tensors          safetensors files, in parts
states           values and their tensors, by name
snapshot         an owner -> files
revival          files -> an owner
"""
