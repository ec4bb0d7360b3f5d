"""What trainers and owners share: the messages, the codec, the errors and the names of things.

Floor 0 of the house: nothing here knows a service, a client or a transport library.

    refs, numbers, limits, errors            words and rules
    dtypes, tensors, trees, payload, values  the codec: torch and Python values <-> messages + payload bytes
    frames, outbox, assembler                messages <-> frames on a connection
    connection, memory                       what a connection is, and one inside a process
    hosts, lane, lane_socket, segments       a connection through shared memory, for two processes of one host
    marks                                    the decorators a hosted class wears
    tryout                                   what an optimizer can do with its options and its state
    v1/                                      the protocol, beside its generated code
"""

import os
import sys

# gRPC reads this when it is imported. Its own support for forks ends forked children, such as the workers of a
# DataLoader, that never touch it.
if "grpc" not in sys.modules:
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
