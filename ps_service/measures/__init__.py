"""Histograms and moving averages."""
