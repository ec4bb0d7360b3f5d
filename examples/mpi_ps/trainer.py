"""A trainer: computes on its own copy of the model, and pushes gradients.

As a program it has the arguments of the example, and finds its rank and the owner in its environment.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from functools import partial

import torch

import trainer_client as tc
from examples.mpi_ps.data import batches
from examples.mpi_ps.model import Net, loss_of
from examples.mpi_ps.modes import MODES
from examples.mpi_ps.settings import Settings, parse

TEAM = "mpi-ps"
"""The communicator of the measuring process, which has rank 0, and the trainers."""


async def serve(rank: int, settings: Settings) -> None:
    """Trains in each mode that it is told, until it is told none."""
    # Shared memory and the direct connection would go past the relay that counts the bytes.
    async with (
        tc.connect(shared_memory=False, direct=False) as ps,
        await ps.communicator(TEAM, settings.trainers + 1, rank=rank + 1) as team,
    ):
        while (name := await team.broadcast(timeout=None)) is not None:
            await _train(ps, team, rank, settings, name)


async def _train(ps: tc.Client, team: tc.Communicator, rank: int, settings: Settings, name: str) -> None:
    mode = MODES[name]
    net = await ps.module(Net, name=name, seed=settings.seed)
    replica = await net.replica(
        compress=None if mode.compress is None else tc.codecs.TopK(mode.compress),
        error_feedback=mode.error_feedback,
        reads=mode.reads,
    )
    lr, policy = mode.learning_rate(settings), mode.made_for(settings)
    step: Callable[[], Awaitable[object]]
    if mode.local is not None:
        inner = torch.optim.SGD(replica.parameters(), lr=lr)
        local = await ps.local_steps(replica, inner, mode.local, policy=policy)
        opt, step = local.optimizer, local.step
    else:
        opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=lr, reads=mode.reads, policy=policy)
        step = partial(replica.push, opt)
    await team.barrier()
    await team.barrier()
    for batch in batches(settings, rank):
        loss_of(replica, batch).backward()
        await step()
    await opt.leave()
    await team.barrier(timeout=None)


if __name__ == "__main__":
    torch.set_num_threads(1)
    asyncio.run(serve(int(os.environ["RANK"]), parse()))
