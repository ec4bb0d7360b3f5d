"""One process of DistributedDataParallel that trains `Wide` on its half of each batch; rank 0 stores the parameters."""

from __future__ import annotations

import sys

import torch
from torch import distributed, nn, optim

from tests.integration.replica_models import Wide


def batch(step: int) -> torch.Tensor:
    """The whole batch of a step."""
    return torch.randn(8, 64, generator=torch.Generator().manual_seed(step))


def main(rank: int, store: str, state: str) -> None:
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    module = Wide()
    module.load_state_dict(torch.load(state, weights_only=True))
    net = nn.parallel.DistributedDataParallel(module)
    opt = optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for step in range(4):
        opt.zero_grad()
        net(batch(step).chunk(2)[rank]).square().mean().backward()
        opt.step()
    if rank == 0:
        torch.save(module.state_dict(), f"{state}.trained")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
