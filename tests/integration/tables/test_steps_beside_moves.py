"""Tests of steps of tables whose rows others have moved, while hosted modules alone look up in them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context as Variables
from typing import Any

import pytest
import torch

import trainer_client as tc
from tests.integration.tables.conftest import Group

DIM = 4
IDS = torch.arange(40)
SCORED = "tests.table_models.Scored"

ONE, OTHER, BOTH = ["ps0"], ["ps1"], ["ps0", "ps1"]

MOVES = [ONE, BOTH, OTHER, ONE]
"""The owners of a table, one after the other."""
BACKWARDS = MOVES[::-1]
"""With these, each follows each once. Here the trainer has seen but one owner when all rows move."""

Way = Callable[[tc.Context, torch.Tensor, Any], Coroutine[Any, Any, Any]]


async def behind(ctx: tc.Context, loss: torch.Tensor, opt: Any) -> None:
    await ctx.backward(loss, step=opt)


async def behind_in_threads(ctx: tc.Context, loss: torch.Tensor, opt: Any) -> None:
    await asyncio.to_thread(ctx.propagate, loss, step=opt)


async def apart(ctx: tc.Context, loss: torch.Tensor, opt: Any) -> None:
    await ctx.backward(loss)
    await opt.step(ctx)


async def unawaited(ctx: tc.Context, loss: torch.Tensor, opt: Any) -> None:
    backward = ctx.backward(loss)
    await opt.step(ctx)
    await backward


async def in_threads(ctx: tc.Context, loss: torch.Tensor, opt: Any) -> None:
    await ctx.backward(loss)
    await asyncio.to_thread(opt.apply, ctx)


async def scaled(ctx: tc.Context, loss: torch.Tensor, opt: Any) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    await ctx.backward(scaler.scale(loss))
    assert await opt.step(ctx, scaler) is not None


WAYS = (behind, behind_in_threads, apart, unawaited, in_threads, scaled)


async def check_steps(group: Group, moves: list[list[str]], way: Way, kind: str, **more: Any) -> None:
    """Each pass, between which rows move, has to count once for every row."""
    ps = group.ps
    items = await ps.table("items", DIM, tc.tables.SGD(1.0), init=tc.tables.Zeros(), owners=moves[0], **more)
    net = await ps.module(SCORED, items, DIM, owner="ps0", seed=0)
    weight = (await net.state_dict())["head.weight"]
    opt: Any = items.optimizer
    if kind != "the table":
        opt = await ps.optimizer(torch.optim.SGD, [items, *net.parameters()], lr=0.0)
    if kind == "a list":
        opt = [await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.0), items.optimizer]

    async def step(ctx: tc.Context) -> None:
        await way(ctx, (await net(IDS)).sum(), opt)

    addresses = [each.server.address for each in group.agents.values()]
    expected = torch.zeros(len(IDS), DIM)
    async with tc.connect(*addresses) as other:
        its = await other.table("items")
        for owners in moves:
            if set(owners) != set(its.owners):
                await other.rebalance([its], owners=owners)
            await ps.run(step)
            assert torch.equal(await its(IDS), expected.sub_(weight))
            assert set(items.owners) == set(owners)


async def check_half(group: Group, number: int, way: Way, kind: str) -> None:
    """Half of the moves: the others come with another kind or way."""
    await check_steps(group, BACKWARDS if number % 2 else MOVES, way, kind)


@pytest.mark.parametrize(("number", "way"), list(enumerate(WAYS)))
async def test_steps_reach_rows_that_others_have_moved(group: Group, number: int, way: Way) -> None:
    await check_half(group, number, way, "the table")


@pytest.mark.parametrize(("number", "way"), list(enumerate(each for each in WAYS if each is not in_threads)))
async def test_steps_with_parameters_reach_rows_that_others_have_moved(group: Group, number: int, way: Way) -> None:
    # In threads, `apply` waits for `step`.
    await check_half(group, number + 1, way, "with parameters")


@pytest.mark.parametrize(("number", "way"), list(enumerate((behind, behind_in_threads))))
async def test_steps_of_a_list_reach_rows_that_others_have_moved(group: Group, number: int, way: Way) -> None:
    await check_half(group, number, way, "a list")


@pytest.mark.parametrize(
    ("moves", "way"), [([BOTH, OTHER, ONE], behind), ([ONE, OTHER, BOTH], apart), ([OTHER, BOTH], in_threads)]
)
async def test_steps_that_are_not_checked_first_reach_rows_that_others_have_moved(
    group: Group, moves: list[list[str]], way: Way
) -> None:
    await check_steps(group, moves, way, "the table", non_finite="apply")


@pytest.mark.parametrize(("way", "kind"), [(behind, "the table"), (apart, "with parameters")])
async def test_each_step_counts_once_while_another_client_moves_rows(group: Group, way: Way, kind: str) -> None:
    ps = group.ps
    items = await ps.table("items", DIM, tc.tables.SGD(1.0), init=tc.tables.Zeros(), owners=["ps0"])
    net = await ps.module(SCORED, items, DIM, owner="ps0", seed=0)
    weight = (await net.state_dict())["head.weight"]
    opt: Any = items.optimizer
    if kind != "the table":
        opt = await ps.optimizer(torch.optim.SGD, [items, *net.parameters()], lr=0.0)
    expected, moved = torch.zeros(len(IDS), DIM), asyncio.Event()

    async def step(ctx: tc.Context) -> None:
        await way(ctx, (await net(IDS)).sum(), opt)

    async def train() -> None:
        while not moved.is_set():
            await ps.run(step)
            expected.sub_(weight)

    addresses = [each.server.address for each in group.agents.values()]
    async with tc.connect(*addresses) as other:
        its = await other.table("items")
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(train(), context=Variables())
            for owners in (BOTH, OTHER, BOTH, ONE):
                await other.rebalance([its], owners=owners)
            moved.set()
        assert torch.equal(await its(IDS), expected)
