"""Groups of owners: the directory, and how hosted code meets other owners."""
