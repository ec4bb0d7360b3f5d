"""What trainers and owners share: the protocol, the codec, connections, and how torch computes.

Nothing here knows the service, the client, or a transport library. `v1` holds the generated code of `proto/`.
"""

import os
import sys

# gRPC reads this when it is imported. Its own support for forks ends forked children, such as the workers of a
# DataLoader, that never touch it.
if "grpc" not in sys.modules:
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
