"""Tests of tables over the wire."""
