"""The code that trainers and owners share: the protocol, the codec, connections, and settings of torch.

It imports neither the service, nor the client, nor a transport library. `v1` holds the generated code of `proto/`.
"""

import os
import sys

# gRPC reads these when it is imported. Its own support for forks ends forked children that do not use gRPC, such as the
# workers of a DataLoader. What it logs about connections that end is no error here: the logger `trainer_client` tells
# which owner cannot be reached.
if "grpc" not in sys.modules:
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
