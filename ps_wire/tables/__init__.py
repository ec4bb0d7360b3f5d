"""What both sides know of embedding tables: slots, and the options of a table."""
