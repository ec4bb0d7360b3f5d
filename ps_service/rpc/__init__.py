"""The gRPC service: the stream of a session, the unary methods, and the shared-memory transport."""
