"""Tests of owners that restart from their checkpoint."""
