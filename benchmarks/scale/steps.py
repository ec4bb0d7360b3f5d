"""The steps that are timed, remote and local."""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

import trainer_client as tc
from benchmarks.data import bag_loss

DIM: Final = 64
PER_BAG: Final = 20
SMALL_BATCH: Final = 32

Step = Callable[[], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Pace:
    """The length of the measurements.

    Attributes:
        seconds: Approximate seconds for one point.
        most: Most steps for one point.
    """

    seconds: float = 1.5
    most: int = 400


async def timed(step: Step, pace: Pace) -> dict[str, float]:
    """Milliseconds of a step: the median, and the quartiles."""
    await step()
    await step()
    taken: list[float] = []
    until = time.perf_counter() + pace.seconds
    while len(taken) < 5 or (len(taken) < pace.most and time.perf_counter() < until):
        began = time.perf_counter()
        await step()
        taken.append(1e3 * (time.perf_counter() - began))
    quarter, middle, three_quarters = statistics.quantiles(taken, n=4, method="inclusive")
    return {"ms": round(middle, 4), "q1": round(quarter, 4), "q3": round(three_quarters, 4)}


def bag_batch(rows: int, bags: int) -> tuple[Tensor, Tensor]:
    """Bags of ids anywhere in a table, and their targets."""
    generator = torch.Generator().manual_seed(rows + bags)
    return torch.randint(rows, (bags, PER_BAG), generator=generator), torch.randn(bags, DIM, generator=generator)


async def bag_step(ps: tc.Client, rows: int, bags: int) -> Step:
    """Forward, backward and SGD on an EmbeddingBag of an owner."""
    table = await ps.module(nn.EmbeddingBag, rows, DIM, mode="sum", sparse=True, seed=0)
    opt = await ps.optimizer(torch.optim.SGD, table.parameters(), lr=0.1)
    ids, wanted = bag_batch(rows, bags)

    async def step() -> None:
        async with ps.context() as ctx:
            await ctx.backward(bag_loss(await table(ids), wanted))
            await opt.step(ctx)

    return step


def local_bag_step(rows: int, bags: int) -> Step:
    """The same step with plain torch."""
    torch.manual_seed(0)
    table = nn.EmbeddingBag(rows, DIM, mode="sum", sparse=True)
    opt = torch.optim.SGD(table.parameters(), lr=0.1)
    ids, wanted = bag_batch(rows, bags)

    async def step() -> None:
        opt.zero_grad()
        bag_loss(table(ids), wanted).backward()
        opt.step()

    return step


async def small_step(ps: tc.Client, name: str) -> Step:
    """Forward, backward and SGD on a small layer, which is mostly the overhead of a step.

    Args:
        ps: The client.
        name: Name of the layer; steps with the same name share it.
    """
    layer, x = await small_layer(ps, name)
    opt = await ps.optimizer(torch.optim.SGD, layer.parameters(), lr=1e-6)

    async def step() -> None:
        async with ps.context() as ctx:
            await ctx.backward((await layer(x)).square().mean())
            await opt.step(ctx)

    return step


async def small_layer(ps: tc.Client, name: str) -> tuple[Any, Tensor]:
    """The small layer and a batch for it."""
    return await ps.module(nn.Linear, DIM, DIM, name=name, seed=0), torch.ones(SMALL_BATCH, DIM)
