"""Embedding tables that are split over owners: look-ups, their gradients, and layers that use them."""
