"""The rows against other libraries that people would pick, each in an environment of its own.

grpc_pickle    a server of grpc.aio that pickles arrays, as a user would write it in an hour
ray            actors of Ray on one node
tensorflow     ParameterServerStrategy of TensorFlow, with look-ups pinned by hand
hivemind       remote experts of hivemind
"""
