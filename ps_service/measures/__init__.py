"""Histograms, rates, and the latest events."""
