"""Connections to owners; the only package of the client that imports gRPC."""
