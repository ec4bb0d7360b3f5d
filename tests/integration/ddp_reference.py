"""One process of DistributedDataParallel that trains models on its half of each batch; rank 0 stores the parameters."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple

import torch
from torch import distributed, nn, optim

from tests.integration.replica_models import ToyModel, Wide

STEPS: Final = 4


def batch(step: int, columns: int = 64) -> torch.Tensor:
    """The whole batch of a step."""
    return torch.randn(8, columns, generator=torch.Generator().manual_seed(step))


class Case(NamedTuple):
    """What is trained.

    Attributes:
        model: The class of the model.
        columns: How many numbers an input has.
        options: Those of SGD.
        loss: The loss of outputs, given a part of the batch.
    """

    model: type[nn.Module]
    columns: int
    options: dict[str, Any]
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def _mean_square(found: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    return found.square().mean()


def _mse(found: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    labels = part[:, :5].sin() + 1.0  # the tutorial draws random ones
    return nn.functional.mse_loss(found, labels)


CASES: Final = {
    "wide": Case(Wide, 64, {"lr": 0.1, "momentum": 0.9}, _mean_square),
    "tutorial": Case(ToyModel, 10, {"lr": 0.001}, _mse),
}


def main(rank: int, store: str, folder: str) -> None:
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    for name, case in CASES.items():
        module = case.model()
        module.load_state_dict(torch.load(f"{folder}/{name}", weights_only=True))
        net = nn.parallel.DistributedDataParallel(module)
        opt = optim.SGD(net.parameters(), **case.options)
        for step in range(STEPS):
            opt.zero_grad()
            part = batch(step, case.columns).chunk(2)[rank]
            case.loss(net(part), part).backward()
            opt.step()
        if rank == 0:
            torch.save(module.state_dict(), f"{folder}/{name}.trained")
    with suppress(RuntimeError):  # the other process may have ended already
        distributed.barrier()
    # Without ending the process group, for whose threads torch sometimes waits for ever.
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
