"""Measures steps of a trainer while its owner, which has a log, writes checkpoints.

`python -m benchmarks.checkpoints` prints, for 1 GiB of state in three forms, the longest step with and without a
checkpoint, how long steps had to wait at a time, and what memory the owner needs besides.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import count
from time import perf_counter

import torch
from rich.console import Console
from rich.table import Table
from torch import nn, optim

import trainer_client as tc
from benchmarks.restarts import OwnerProcess, serve
from ps_service.cli import probe
from ps_wire.limits import MIB
from ps_wire.v1.operations_pb2 import CheckpointReply, CheckpointRequest

_POLL_SECONDS = 0.02
_CHECKPOINTS = 2
_ROWS = 1 << 15
"""Rows that are put into a table, or looked up, at once."""

Step = Callable[[], Awaitable[None]]


async def many(ps: tc.Client, mib: int) -> Step:
    """Parameters of 10 MiB with the state of Adam; each step is of one of them."""
    nets = [await ps.module(nn.Linear, 1600, 1638, bias=False, seed=1) for _ in range(max(1, mib // 30))]
    opt = await ps.optimizer(optim.Adam, [each for net in nets for each in net.parameters()], lr=1e-4)
    turns, x = count(), torch.randn(1, 1600)

    async def step() -> None:
        async with ps.context() as ctx:
            await ctx.backward((await nets[next(turns) % len(nets)](x)).square().sum(), step=opt)

    for _ in nets:
        await step()
    return step


async def one(ps: tc.Client, mib: int) -> Step:
    """One embedding of half the size with plain SGD, stepped in a few rows."""
    rows = mib * MIB // 2 // 1024
    net = await ps.module(nn.Embedding, rows, 256, sparse=True, seed=1)
    opt = await ps.optimizer(optim.SGD, net.parameters(), lr=1e-4)

    async def step() -> None:
        ids = torch.randint(rows, (64,))
        async with ps.context() as ctx:
            await ctx.backward((await net(ids)).square().sum(), step=opt)

    await step()
    return step


async def table(ps: tc.Client, mib: int) -> Step:
    """A table with Adagrad; each step updates a thousand of its rows."""
    rows = mib * MIB // (4 * 129)
    items = await ps.table("items", 64, tc.tables.Adagrad(lr=1e-3))

    async def update(ids: torch.Tensor) -> None:
        async with ps.context() as ctx:
            await ctx.backward((await items(ids)).square().sum(), step=items.optimizer)

    # Only rows that were updated are there.
    for begin in range(0, rows, _ROWS):
        await update(torch.arange(begin, min(begin + _ROWS, rows)))
    return lambda: update(torch.randint(rows, (1000,)))


@dataclass
class Found:
    """Seconds of steps without and during checkpoints, what the owner says of these, and the bytes of memory that they
    needed."""

    without: list[float] = field(default_factory=list)
    during: list[float] = field(default_factory=list)
    replies: list[CheckpointReply] = field(default_factory=list)
    memory: int = 0


async def measure(make: Callable[[tc.Client, int], Awaitable[Step]], mib: int, seconds: float) -> Found:
    """Steps an owner with so many MiB of state for some seconds, and then while it writes checkpoints."""
    found = Found()
    with tempfile.TemporaryDirectory(dir=".") as folder:
        owner = await serve(folder, "127.0.0.1:0", "--durability", "interval:1", "--log-bytes", str(1 << 40))
        try:
            async with tc.connect(owner.address, timeout=300) as ps:
                step = await make(ps, mib)
                await _steps(step, asyncio.create_task(asyncio.sleep(seconds)), found.without)
                before = owner.own_memory()
                for _ in range(_CHECKPOINTS):
                    asking = asyncio.create_task(
                        asyncio.to_thread(probe.ask, owner.address, CheckpointRequest(), 300.0)
                    )
                    watching = asyncio.create_task(_watch(owner, asking))
                    await _steps(step, asking, found.during)
                    found.replies.append(await asking)
                    found.memory = max(found.memory, await watching - before)
        finally:
            owner.end()
            await owner.gone()
    return found


async def _steps(step: Step, until: asyncio.Task[object], found: list[float]) -> None:
    while not until.done():
        began = perf_counter()
        await step()
        found.append(perf_counter() - began)


async def _watch(owner: OwnerProcess, until: asyncio.Task[object]) -> int:
    """The most memory that the owner has until then."""
    most = 0
    while not until.done():
        most = max(most, owner.own_memory())
        await asyncio.wait([until], timeout=_POLL_SECONDS)
    return most


def main() -> None:
    """Measures and prints."""
    kinds = {"many": many, "one": one, "table": table}
    parser = argparse.ArgumentParser(prog="python -m benchmarks.checkpoints", description=__doc__)
    parser.add_argument("--mib", type=int, default=1024, help="MiB of state")
    parser.add_argument("--seconds", type=float, default=5.0, help="seconds of steps without a checkpoint")
    parser.add_argument("kinds", nargs="*", default=[*kinds], choices=[*kinds], help="what the state is")
    arguments = parser.parse_args()
    shown = Table(
        "state", "MiB", "s", "waited, ms", "longest step, ms", "without", "median, ms", "without", "memory, MiB"
    )
    for kind in arguments.kinds:
        found = asyncio.run(measure(kinds[kind], arguments.mib, arguments.seconds))
        shown.add_row(
            kind,
            " ".join(f"{each.bytes / MIB:.0f}" for each in found.replies),
            " ".join(f"{each.seconds:.1f}" for each in found.replies),
            " ".join(f"{each.held_seconds * 1000:.0f}" for each in found.replies),
            *(f"{max(each) * 1000:.0f}" for each in (found.during, found.without)),
            *(f"{sorted(each)[len(each) // 2] * 1000:.1f}" for each in (found.during, found.without)),
            f"+{found.memory / MIB:.0f}",
        )
    Console().print(shown)


if __name__ == "__main__":
    main()
