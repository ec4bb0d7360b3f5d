"""Threads, locks, forked processes and nested requests, for both sides."""
