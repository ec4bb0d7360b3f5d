"""Contexts: one forward, backward and step over any number of owners."""
