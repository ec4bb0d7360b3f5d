"""Members of a group that begins as a whole, over mutual TLS and with tokens, each a process of its own.

python -m tests.integration.tls.members 2 FOLDER
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch

import trainer_client as tc
from tests.rpc.groups import main, tell
from trainer_client import autograd as dist_autograd
from trainer_client import rpc


def ring(rank: int, size: int, folder: str) -> None:
    """Each member calls the other: one has arguments, the other has variables."""
    files = {"CA": "ca.pem", "CERT": "ca-owner.pem", "KEY": "ca-owner.key"}
    whole = tc.TLS(*(Path(folder, file) for file in files.values()))
    own, known = Path(folder, f"token{rank}"), Path(folder, "tokens")
    if rank == 0:
        given: dict[str, Any] = {"tls": whole, "token": own}
    else:
        given = {}
        variables = {f"PS_TLS_{name}": f"{folder}/{file}" for name, file in files.items()}
        os.environ.update(variables | {"PS_OWN_TOKEN_FILE": str(own)})
    rpc.init_rpc(
        f"worker{rank}", rank=rank, world_size=size, timeout=20.0, shared_memory=False, token_file=known, **given
    )
    other = rpc.get_worker_info(f"worker{1 - rank}")
    result = rpc.rpc_sync(other, torch.add, args=(torch.ones(2), 1))
    there = rpc.remote(other, torch.zeros, args=(2,))
    with dist_autograd.context() as context_id:
        weight = torch.ones(2, requires_grad=True)
        loss = rpc.rpc_sync(other, torch.mul, args=(weight, 3)).sum() + there.to_here(timeout=20).sum()
        dist_autograd.backward(context_id, [loss])
        gradient = dist_autograd.get_gradients(context_id)[weight]
    rpc.barrier(timeout=20)
    for name in ("PS_OWN_TOKEN_FILE", *(f"PS_TLS_{name}" for name in files)):
        os.environ.pop(name, None)
    refused = []
    for strange in (None, tc.TLS(Path(folder, "ca.pem")), whole):
        try:
            with tc.connect(rpc.address(), tls=strange, connect_timeout=0.0):
                refused.append("no")
        except (tc.errors.UnavailableError, tc.errors.UnauthenticatedError) as error:
            refused.append(type(error).__name__)
    rpc.shutdown(timeout=20)
    tell(rank, result.tolist(), gradient.tolist(), *refused)


if __name__ == "__main__":
    sys.exit(main(ring, int(sys.argv[1]), sys.argv[2]))
