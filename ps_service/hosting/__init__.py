"""Hosted objects: the allow-list, the registry, references, and the copies of modules that calls run on."""
