"""Measures each series in a function that starts an owner of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import psutil
from torch import nn

import trainer_client as tc
from benchmarks.scale.look_ups import look_ups
from benchmarks.scale.owner import Owner
from benchmarks.scale.steps import DIM, Pace, Step, bag_step, local_bag_step, small_layer, small_step, timed

Points = list[dict[str, Any]]
Told = Callable[[str], None]
"""Called with a line of progress."""

BAGS: Final = 1024
"""Bags of a batch in the series in which the table grows."""
ROWS: Final = 1_000_000
"""Rows of the table in the series in which the batch grows."""
AT_ONCE: Final = 64
"""Requests in flight at once during setup."""


@dataclass(frozen=True, slots=True)
class Series:
    """One series.

    Attributes:
        name: Its name in `bench-scale.json`.
        title: The quantity that grows, for people.
        measure: Measures it for each of `values`, on a new owner.
        values: The values of the quantity.
        quick: The values for a smoke test.
    """

    name: str
    title: str
    measure: Callable[[Owner, Sequence[int], Pace, Told], Awaitable[Points]]
    values: tuple[int, ...]
    quick: tuple[int, ...]


async def table_rows(owner: Owner, values: Sequence[int], pace: Pace, told: Told) -> Points:
    """A step against the rows of the table, with the same number of bags."""
    return await _tables(owner, [(rows, BAGS) for rows in values], values, pace, told)


async def batch_size(owner: Owner, values: Sequence[int], pace: Pace, told: Told) -> Points:
    """A step against the bags of a batch, on the same table."""
    return await _tables(owner, [(ROWS, bags) for bags in values], values, pace, told)


async def _tables(
    owner: Owner, shapes: Sequence[tuple[int, int]], values: Sequence[int], pace: Pace, told: Told
) -> Points:
    points: Points = []
    for value, (rows, bags) in zip(values, shapes, strict=True):
        if 8 * rows * DIM > psutil.virtual_memory().available:
            told(f"{value:,}: left out, memory is short")
            continue
        # The table is freed with the client, before the local one is made.
        async with tc.connect(owner.address) as ps:
            point = {"x": value, **await timed(await bag_step(ps, rows, bags), pace)}
        point["local_ms"] = (await timed(local_bag_step(rows, bags), pace))["ms"]
        points.append(point)
        told(f"{value:,}: {point['ms']:.2f} ms, local {point['local_ms']:.2f} ms")
    return points


async def sessions_idle(owner: Owner, values: Sequence[int], pace: Pace, told: Told) -> Points:
    """One trainer's step while other trainers are connected and idle."""
    points: Points = []
    async with AsyncExitStack() as stack:
        ps = await stack.enter_async_context(tc.connect(owner.address))
        step = await small_step(ps, "layer")
        await timed(step, pace)
        before = owner.rss()
        connected = 0
        for value in values:
            await _enter(stack, [tc.connect(owner.address) for _ in range(value - connected)])
            connected = value
            held = (owner.rss() - before) / value / 1024
            points.append({"x": value, **await timed(step, pace), "kib_each": round(held, 1)})
            told(f"{value:,}: {points[-1]['ms']:.2f} ms, {held:.0f} KiB each")
    return points


async def sessions_active(owner: Owner, values: Sequence[int], pace: Pace, told: Told) -> Points:
    """A step when all sessions take steps at once: the time of all, divided by all steps."""
    points: Points = []
    async with AsyncExitStack() as stack:
        steps: list[Step] = []
        for value in values:
            clients = await _enter(stack, [tc.connect(owner.address) for _ in range(value - len(steps))])
            steps += [await small_step(ps, "layer") for ps in clients]
            each = max(1, pace.most // 2 // value)

            point = await timed(partial(_together, steps, each), pace)
            share = {key: round(milliseconds / each / value, 4) for key, milliseconds in point.items()}
            points.append({"x": value, **share})
            told(f"{value:,}: {share['ms']:.2f} ms per step of any of them")
    return points


async def objects(owner: Owner, values: Sequence[int], pace: Pace, told: Told) -> Points:
    """A step while the owner hosts other objects."""
    points: Points = []
    async with tc.connect(owner.address) as ps:
        step = await small_step(ps, "layer")
        await timed(step, pace)
        before = owner.rss()
        held: list[Any] = []
        for value in values:
            began, missing = time.perf_counter(), value - len(held)
            while len(held) < value:
                batch = min(AT_ONCE, value - len(held))
                held += await asyncio.gather(*(ps.module(nn.Linear, 8, 8) for _ in range(batch)))
            making = 1e3 * (time.perf_counter() - began) / missing
            each = (owner.rss() - before) / value / 1024
            points.append({"x": value, **await timed(step, pace), "kib_each": round(each, 1), "make_ms": making})
            told(f"{value:,}: {points[-1]['ms']:.2f} ms, {each:.0f} KiB each, made in {making:.2f} ms each")
    return points


async def contexts(owner: Owner, values: Sequence[int], pace: Pace, told: Told) -> Points:
    """A step while other passes are open, each with a recorded forward of the same small layer."""
    points: Points = []
    async with tc.connect(owner.address) as ps, asyncio.TaskGroup() as group:
        step = await small_step(ps, "layer")
        layer, x = await small_layer(ps, "layer")
        await timed(step, pace)
        before = owner.rss()
        release = asyncio.Event()
        slots = asyncio.Semaphore(AT_ONCE)
        opened = asyncio.Semaphore(0)

        async def hold() -> None:
            async with ps.context():
                async with slots:
                    output = await layer(x)
                opened.release()
                await release.wait()
                del output

        open_now = 0
        for value in values:
            for _ in range(value - open_now):
                group.create_task(hold())
            for _ in range(value - open_now):
                await opened.acquire()
            open_now = value
            held = (owner.rss() - before) / value / 1024
            points.append({"x": value, **await timed(step, pace), "kib_each": round(held, 1)})
            told(f"{value:,}: {points[-1]['ms']:.2f} ms, {held:.0f} KiB each")
        release.set()
    return points


async def _enter(stack: AsyncExitStack, connecting: Sequence[Any]) -> list[tc.Client]:
    clients: list[tc.Client] = []
    for first in range(0, len(connecting), AT_ONCE):
        some = [stack.enter_async_context(each) for each in connecting[first : first + AT_ONCE]]
        clients += await asyncio.gather(*some)
    return clients


async def _together(steps: Sequence[Step], times: int) -> None:
    await asyncio.gather(*(_repeated(step, times) for step in steps))


async def _repeated(step: Step, times: int) -> None:
    for _ in range(times):
        await step()


SERIES: Final = (
    Series("table_rows", "rows of the table", table_rows, (10**4, 10**5, 10**6, 10**7), (10**3, 10**4)),
    Series(
        "table_look_ups", "rows that a table has", look_ups, (10**4, 10**5, 10**6, 10**7, 3 * 10**7), (10**3, 10**4)
    ),
    Series("batch_size", "bags in a batch", batch_size, (64, 256, 1024, 4096, 16384), (64, 256)),
    Series("sessions_idle", "idle sessions beside", sessions_idle, (1, 4, 16, 64, 256), (1, 4)),
    Series("sessions_active", "active sessions", sessions_active, (1, 4, 16, 64, 256), (1, 4)),
    Series("objects", "objects hosted", objects, (1, 10, 100, 1000, 10_000), (1, 10)),
    Series("contexts", "contexts open", contexts, (1, 10, 100, 1000), (1, 10)),
)
