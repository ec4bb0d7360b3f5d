"""Floor 3: the wire side of an owner. Decode, ask the engine, encode.

exchange       one request on its way through: values in, values out
handlers       one small function per operation, and the table of them
dispatch       runs a handler: threads, deadlines, errors
conversations  the requests of each session, across broken streams
servicer       the gRPC service: the stream of a session, and the plain unary methods
grpc_stream    a gRPC stream as a connection
"""
