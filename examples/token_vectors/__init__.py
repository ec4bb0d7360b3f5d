"""Skip-gram vectors of the identifiers in Python's own source, in growing tables over two owners."""
