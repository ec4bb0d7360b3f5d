"""Groups of owners: the directory, and the interface through which hosted code reaches other owners."""
