"""Requests of those who serve what is trained."""
