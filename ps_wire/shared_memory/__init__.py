"""The shared-memory transport: a connection between two processes of one host."""
