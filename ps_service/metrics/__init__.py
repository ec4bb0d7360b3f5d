"""Counters and reports of an owner's activity."""
