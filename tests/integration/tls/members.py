"""Members of a group that begins as a whole, over mutual TLS, each a process of its own.

python -m tests.integration.tls.members 2 FOLDER
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

import trainer_client as tc
from tests.rpc.groups import main, tell
from trainer_client import rpc


def ring(rank: int, size: int, folder: str) -> None:
    """Each member calls the other: one has an argument, the other has variables."""
    files = {"CA": "ca.pem", "CERT": "ca-owner.pem", "KEY": "ca-owner.key"}
    tls = tc.TLS(*(Path(folder, file) for file in files.values())) if rank == 0 else None
    if rank == 1:
        os.environ.update({f"PS_TLS_{name}": f"{folder}/{file}" for name, file in files.items()})
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=size, timeout=20.0, shared_memory=False, tls=tls)
    other = rpc.get_worker_info(f"worker{1 - rank}")
    result = rpc.rpc_sync(other, torch.add, args=(torch.ones(2), 1))
    rpc.barrier(timeout=20)
    for name in files:
        os.environ.pop(f"PS_TLS_{name}", None)
    refused = []
    for strange in (None, tc.TLS(Path(folder, "ca.pem"))):
        try:
            with tc.connect(rpc.address(), tls=strange, connect_timeout=0.0):
                refused.append(False)
        except tc.errors.UnavailableError:
            refused.append(True)
    rpc.shutdown(timeout=20)
    tell(rank, result.tolist(), refused)


if __name__ == "__main__":
    sys.exit(main(ring, int(sys.argv[1]), sys.argv[2]))
