"""Checks in a process of its own how many threads torch uses in the compute threads of owners with several settings."""

from __future__ import annotations

import asyncio

import torch

from ps_service.cli import engines
from ps_service.config import load
from ps_service.engine import Engine
from ps_service.execution.cores import usable_cores
from tests.ps_service.execution.pools import run


def in_use() -> int:
    # An operation large enough for a team of threads, in a thread that may never have run torch before.
    torch.randn(3_000_000).mul_(2.0)
    return torch.get_num_threads()


async def found(engine: Engine) -> set[int]:
    return {await run(engine.compute, in_use) for _ in range(3)}


async def shared(engine: Engine) -> None:
    assert await run(engine.compute, in_use) == 1, "nothing was long"
    engine.compute.cores.note(60.0)
    assert await found(engine) == {usable_cores()}
    assert torch.get_num_threads() == 1, "the number of the event loop"


def main() -> None:
    torch.set_num_threads(usable_cores() + 4)  # none of the numbers below
    engine = engines.engine_of(load(threads=2, torch_threads=3))
    assert asyncio.run(found(engine)) == {3}
    engine.close()
    for threads, expected in ((64, 1), (1, usable_cores())):
        engine = engines.engine_of(load(threads=threads))
        assert asyncio.run(found(engine)) == {expected}
        engine.close()
    engine = engines.engine_of(load(threads=64, share_cores=True))
    asyncio.run(shared(engine))
    engine.close()


if __name__ == "__main__":
    main()
