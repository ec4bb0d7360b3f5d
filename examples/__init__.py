"""Example programs, one package each."""
