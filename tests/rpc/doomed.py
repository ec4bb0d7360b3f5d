"""A trainer that stops in the middle of a pass over two owners, of which it calls only one.

python -m tests.rpc.doomed DIRECTORY
"""

from __future__ import annotations

import sys

import torch

from tests.rpc import situations as s
from trainer_client import autograd, rpc

if __name__ == "__main__":
    rpc.init_rpc("doomed", directory=sys.argv[1])
    kept = rpc.remote("worker1", s.Keeper)
    with autograd.context():
        x = torch.ones(2, requires_grad=True)
        y = rpc.rpc_sync("worker1", s.nested_add, args=("worker2", x, x))
        print("in the middle of a pass", flush=True)
        rpc.Future[None]().wait()
