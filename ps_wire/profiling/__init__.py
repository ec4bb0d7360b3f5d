"""Requests that are made while torch's profiler runs, and the events of the profiler in messages."""
