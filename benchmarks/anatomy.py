"""Measures the cost of Python on both sides per operation, and in which part.

`python -m benchmarks.anatomy` runs an owner and a trainer in one process, on one event loop, with shared memory. No
process waits for another to wake up, so that only work is measured. Each operation is timed first without a profiler.
Then cProfile divides the time among the parts. Together with `benchmarks.floors` that explains `make bench`.
"""

from __future__ import annotations

import cProfile
import pstats
from collections import defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import perf_counter
from typing import Final

import torch
import uvloop
from rich.console import Console
from rich.table import Table

import trainer_client as tc
from benchmarks import models
from ps_service.engine import Engine
from ps_service.hosting.allowlist import AllowList
from ps_service.server import Server

_ROOT: Final = Path(__file__).resolve().parent.parent
_PARTS: Final = {
    "ps_wire/codec": "codec",
    "ps_wire": "transport and frames",
    "trainer_client": "trainer",
    "ps_service/rpc": "owner: requests",
    "ps_service/requests": "owner: requests",
    "ps_service": "owner: engine and state",
    "benchmarks": "the model itself",
}


def main() -> None:
    """Measures and prints the costs."""
    torch.set_num_threads(1)
    uvloop.run(_measure())


async def _measure() -> None:
    async with (
        Server(Engine("ps0", AllowList([models])), "127.0.0.1:0") as owner,
        tc.connect(owner.address) as ps,
    ):
        calls = await ps.create(models.Calls)
        table = await ps.module(models.EmbeddingTable, 200, 16, 0.0)
        opt = await ps.optimizer(torch.optim.SGD, table.parameters(), lr=0.01)
        small, words = torch.zeros(1), torch.zeros(7, 10, dtype=torch.long)

        async def one_pass() -> None:
            async with ps.context() as ctx:
                await ctx.backward((await table(words)).sum())
                await opt.step(ctx)

        await _show("an empty call", calls.nothing, 3000)
        await _show("4 bytes there and back", lambda: calls.echo(small), 3000)
        await _show("forward, backward and step of a small table", one_pass, 500)


async def _show(name: str, operation: Callable[[], Awaitable[object]], count: int) -> None:
    for _ in range(count // 5):
        await operation()
    began = perf_counter()
    for _ in range(count):
        await operation()
    each = (perf_counter() - began) / count
    profile = cProfile.Profile()
    profile.enable()
    for _ in range(count):
        await operation()
    profile.disable()
    shares = _shares(profile)
    whole = sum(shares.values())
    table = Table(
        "where", "share", "us", title=f"{name}: {each * 1e6:.0f} us of work on both sides", title_justify="left"
    )
    for part, seconds in sorted(shares.items(), key=lambda item: -item[1]):
        table.add_row(part, f"{seconds / whole:.0%}", f"{each * 1e6 * seconds / whole:.0f}")
    Console().print(table)


def _shares(profile: cProfile.Profile) -> dict[str, float]:
    """Seconds by part. Time in torch, protobuf and the standard library counts for the part that called it."""
    shares: dict[str, float] = defaultdict(float)
    for (file, _, _), (_, _, own, _, callers) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
        part = _part(file)
        if part is not None:
            shares[part] += own
            continue
        for (caller, _, _), (_, _, of_this, _) in callers.items():
            shares[_part(caller) or "event loop and libraries"] += of_this
        if not callers:
            shares["event loop and libraries"] += own
    return shares


def _part(file: str) -> str | None:
    try:
        inside = Path(file).relative_to(_ROOT).as_posix()
    except ValueError:
        return None
    return next((part for prefix, part in _PARTS.items() if inside.startswith(prefix)), None)


if __name__ == "__main__":
    main()
