"""Metrics for Prometheus and health, over HTTP."""
