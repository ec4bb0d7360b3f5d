"""Attacks on real owners, each with what has to hold."""
