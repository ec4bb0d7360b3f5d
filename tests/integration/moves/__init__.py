"""Tests of named objects that move to other owners."""
