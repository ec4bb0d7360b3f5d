"""Embedding tables: what one owner holds of a table, and everything that is computed with it."""
