"""Ways to reach an owner. The only part of the client that knows a transport library.

grpc_stream   the bidirectional stream of the owner's gRPC service
memory        an owner in the same process
faulty        any of them, breaking on purpose
"""
