"""Tests the staleness that an owner reports for two trainers with interleaved passes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from contextvars import Context
from pathlib import Path
from typing import Any

import pytest
import torch

import trainer_client as tc
from ps_service.passes.staleness import STALENESS_BOUNDS
from ps_service.server import Server
from tests.integration.restarting import Owner
from tests.integration.support import AFFINE


def told(owner: Server, name: str = "net.optimizer") -> list[tuple[float, int]]:
    """How many steps were how stale, of what is not 0; above 2 only the bucket is known, so it is told by its bound."""
    found = owner.engine.counters.steps.snapshot()[name].staleness
    bounds = (*STALENESS_BOUNDS, float("inf"))
    return [(bound, count) for bound, count in zip(bounds, found.counts, strict=True) if count]


async def shared(client: tc.Client, name: str = "net", **options: Any) -> tuple[Any, Any]:
    """A net and its optimizer, the same for every client."""
    net = await client.module(AFFINE, 3, 2, name=name)
    return net, await client.optimizer(torch.optim.SGD, net.parameters(), lr=0.01, **options)


async def aside(work: Coroutine[Any, Any, Any], context: Context | None = None) -> Any:
    """Runs something as another task would, in which other passes may be open."""
    return await asyncio.create_task(work, context=Context() if context is None else context)


async def one_pass(client: tc.Client, net: Any, opt: Any) -> None:
    async with client.context() as ctx:
        await ctx.backward((await net(torch.ones(1, 3))).sum())
        await opt.step(ctx)


@pytest.mark.parametrize("reads", ["consistent", "inconsistent"])
async def test_a_pass_is_as_stale_as_others_have_stepped(
    owner: Server, ps: tc.Client, ps2: tc.Client, reads: str
) -> None:
    net, opt = await shared(ps, reads=reads)
    net2, opt2 = await shared(ps2, reads=reads)
    async with ps.context() as ctx:
        loss = (await net(torch.ones(1, 3))).sum()
        for _ in range(2):
            await aside(one_pass(ps2, net2, opt2))
        await ctx.backward(loss)
        await opt.step(ctx)
    assert told(owner) == [(0, 2), (2, 1)]
    assert owner.engine.counters.steps.snapshot()["net.optimizer"].steps == 3


@pytest.mark.parametrize(
    ("way", "log"),
    [
        *((way, False) for way in ("step", "backward", "two", "two, the first", "with a table", "in a list")),
        *(("step", True), ("two, the first", True), ("with a table", True)),
    ],
)
async def test_a_trainer_is_told_how_stale_its_step_was(tmp_path: Path, way: str, log: bool) -> None:
    async with AsyncExitStack() as stack:
        durable = {"durability": "interval:1"} if log else {}
        running = await stack.enter_async_context(Owner(tmp_path / "ps0", **durable))
        ps, ps2 = [await stack.enter_async_context(tc.connect(running.address)) for _ in range(2)]
        net, opt = await shared(ps)
        more, other = await shared(ps, "more")
        items = await ps.table("items", 2, tc.tables.SGD(0.1))
        both = await ps.optimizer(torch.optim.SGD, [*net.parameters(), items], lr=0.01)
        net2, opt2 = await shared(ps2)
        async with ps.context() as ctx:
            loss = (await more(await net(torch.ones(1, 3)) @ torch.ones(2, 3))).sum()
            if way == "with a table":
                loss = loss + (await items(torch.tensor([1]))).sum()
            for _ in range(2):
                await aside(one_pass(ps2, net2, opt2))
            if way == "step":
                await ctx.backward(loss)
                told = [(await opt.step(ctx)).staleness]
            elif way == "with a table":
                told = [(await ctx.backward(loss, step=both)).staleness]
            elif way in ("backward", "in a list"):
                found = await ctx.backward(loss, step=opt if way == "backward" else [opt])
                told = [each.staleness for each in (found if way == "in a list" else [found])]
            else:
                order = [opt, other] if way == "two, the first" else [other, opt]
                told = [each.staleness for each in await ctx.backward(loss, step=order)]
        assert told == ([2] if "two" not in way else [2, 0] if way == "two, the first" else [0, 2])


@pytest.mark.filterwarnings("ignore:a second step of the same optimizer")
async def test_the_first_reading_counts_and_own_steps_do_not(owner: Server, ps: tc.Client, ps2: tc.Client) -> None:
    (net, opt), (net2, opt2) = await shared(ps), await shared(ps2)
    async with ps.context() as ctx:
        await ctx.backward((await net(torch.ones(1, 3))).sum())
        await aside(one_pass(ps2, net2, opt2))
        await ctx.backward((await net(torch.ones(1, 3))).sum())
        await opt.step(ctx)
        assert told(owner) == [(0, 1), (1, 1)]
        await opt.step(ctx)
        assert told(owner) == [(0, 1), (1, 2)], "its own step is not one of others"
        await aside(one_pass(ps2, net2, opt2))
        await opt.step(ctx)
    assert told(owner) == [(0, 2), (1, 2), (2, 1)]


async def test_only_steps_of_the_same_parameters_count(owner: Server, ps: tc.Client, ps2: tc.Client) -> None:
    net, opt = await shared(ps)
    other, other_opt = await shared(ps2, "other")
    async with ps.context() as ctx:
        loss = (await net(torch.ones(1, 3))).sum()
        await aside(one_pass(ps2, other, other_opt))
        await ctx.backward(loss)
        await opt.step(ctx)
    assert told(owner) == told(owner, "other.optimizer") == [(0, 1)]


async def test_of_several_parameters_the_most_stale_counts(owner: Server, ps: tc.Client, ps2: tc.Client) -> None:
    early, late = [await ps.module(AFFINE, 3, 3, name=name) for name in ("early", "late")]
    opt = await ps.optimizer(torch.optim.SGD, [*early.parameters(), *late.parameters()], name="both", lr=0.01)
    early2 = await ps2.module(AFFINE, 3, 3, name="early")
    early_opt = await ps2.optimizer(torch.optim.SGD, early2.parameters(), name="early alone", lr=0.01)
    async with ps.context() as ctx:
        hidden = await early(torch.ones(1, 3))
        await aside(one_pass(ps2, early2, early_opt))
        await ctx.backward((await late(hidden)).sum())
        await opt.step(ctx)
    assert told(owner, "both") == [(1, 1)]


async def test_a_call_outside_of_passes_does_not_count(owner: Server, ps: tc.Client) -> None:
    net, opt = await shared(ps)
    await net(torch.ones(1, 3))
    await one_pass(ps, net, opt)
    await net(torch.ones(1, 3))
    await one_pass(ps, net, opt)
    assert told(owner) == [(0, 2)]


class Pass:
    """A pass that has begun, and can be ended at any time later."""

    def __init__(self, client: tc.Client, net: Any, opt: Any) -> None:
        self._context, self._pass = Context(), client.context()
        self._net, self._opt = net, opt

    async def begin(self) -> None:
        await aside(self._begin(), self._context)

    async def end(self) -> None:
        await aside(self._end(), self._context)

    async def _begin(self) -> None:
        await self._pass.__aenter__()
        self._loss = (await self._net(torch.ones(1, 3))).sum()

    async def _end(self) -> None:
        await self._pass.backward(self._loss)
        await self._opt.step(self._pass)
        await self._pass.__aexit__(None, None, None)


async def test_any_order_of_passes_is_told_as_it_was(owner: Server, ps: tc.Client, ps2: tc.Client) -> None:
    chance = random.Random(1)
    ours = [(client, *await shared(client)) for client in (ps, ps2)]
    begun: list[tuple[Pass, int]] = []
    steps, expected = 0, [0] * (len(STALENESS_BOUNDS) + 1)
    for turn in range(60):
        if turn < 40 and (not begun or chance.random() < 0.6):
            begun.append((Pass(*chance.choice(ours)), steps))
            await begun[-1][0].begin()
        elif begun:
            ended, read = begun.pop(chance.randrange(len(begun)))
            await ended.end()
            expected[sum(bound < steps - read for bound in STALENESS_BOUNDS)] += 1
            steps += 1
    found = owner.engine.counters.steps.snapshot()["net.optimizer"]
    assert (found.steps, list(found.staleness.counts)) == (steps, expected)
    assert not begun
    assert sum(count > 0 for count in expected) >= 4, "the orders differ"


async def test_an_optimizer_without_a_name_is_counted_with_the_others(owner: Server, ps: tc.Client) -> None:
    net = await ps.module(AFFINE, 3, 2)
    opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.01)
    await one_pass(ps, net, opt)
    assert told(owner, "(others)") == [(0, 1)]
