"""Tests of ps_reader."""
