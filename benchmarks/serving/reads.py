"""Rows that one owner serves while two trainers train, and by how much that slows these."""

from __future__ import annotations

import asyncio
import statistics
import time
from dataclasses import dataclass

import numpy as np

import trainer_client as tc
from benchmarks.process import Children
from benchmarks.serving.running import running
from benchmarks.serving.work import zipf

IDS = 1000
"""Ids of a read."""

ROWS = 100_000


@dataclass(frozen=True)
class Reads:
    """What was measured.

    Attributes:
        offered: Rows a second that were asked for.
        served: Rows a second that were answered.
        p50_ms, p99_ms: Of a read of 1,000 ids.
        slower: Steps per second of the trainers without reads, divided by those beside them: the median of rounds.
    """

    offered: float
    served: float
    p50_ms: float
    p99_ms: float
    slower: float


async def measure(children: Children, rate: float, rounds: int, seconds: float) -> Reads:
    """Trains without reads and beside them in turns of so many seconds. `rate` is the rows a second to ask for."""
    with running(children, ROWS) as world:
        world.train(2)
        await asyncio.sleep(seconds)
        async with tc.connect(world.address) as ps:
            items = await ps.table("items")
            world.steps_per_second()
            served, took, slower = [], list[float](), []
            for _ in range(rounds):
                await asyncio.sleep(seconds)
                alone = world.steps_per_second()
                served.append(await _read(items, rate, seconds, took))
                slower.append(alone / world.steps_per_second())
    p50, p99 = np.percentile(took, [50, 99])
    return Reads(rate, statistics.median(served), p50 * 1000, p99 * 1000, statistics.median(slower))


async def _read(items: tc.Table, rate: float, seconds: float, took: list[float]) -> float:
    """Reads at a rate, one read after the other was due, whether that has ended or not. Returns rows a second."""
    rng = np.random.default_rng(7)
    asked = [zipf(ROWS, IDS, rng) for _ in range(64)]
    began, reads = time.perf_counter(), set[asyncio.Task[None]]()

    async def read(number: int) -> None:
        at = time.perf_counter()
        await items.read(asked[number % 64])
        took.append(time.perf_counter() - at)

    number = 0
    while (now := time.perf_counter() - began) < seconds:
        while number * IDS / rate <= now:
            task = asyncio.ensure_future(read(number))
            reads.add(task)
            task.add_done_callback(reads.discard)
            number += 1
        await asyncio.sleep(number * IDS / rate - now)
    await asyncio.gather(*reads)
    return number * IDS / (time.perf_counter() - began)
