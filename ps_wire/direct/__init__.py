"""A connection over a TCP port of the owner, beside gRPC."""
