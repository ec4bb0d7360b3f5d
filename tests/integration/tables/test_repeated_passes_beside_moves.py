"""Tests of passes that are run again, of whose steps some owners had applied theirs before rows moved between them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextvars import Context
from typing import Any

import pytest
import torch
from torch import nn

import trainer_client as tc
from ps_wire.tables.routing import slots_of
from tests.integration.tables.moving import NAMES, table_of

IDS = torch.arange(60)

MOVES: dict[str, list[list[str]]] = {
    "to who has not applied it": [["ps1"]],
    "to who has applied it": [["ps0"]],
    "to another": [["ps2"]],
    "between all": [list(NAMES)],
    "one after the other": [["ps1"], ["ps2"]],
    "there and back": [["ps1"], ["ps0", "ps1"]],
    "together and apart": [["ps2"], list(NAMES)],
}


def ids_of(items: tc.Table, owner: str) -> torch.Tensor:
    return IDS[items.routing.slots(owner)[slots_of(IDS)]]


async def step_on(ctx: tc.Context, items: tc.Table, ids: torch.Tensor) -> None:
    """Steps as if the owners of all other ids had been killed before they could."""
    await ctx.backward((await items(ids)).sum(), step=items.optimizer)


@pytest.mark.parametrize("moves", MOVES.values(), ids=MOVES)
async def test_a_step_that_some_owners_have_applied_counts_once_for_each_row(
    trio: tuple[tc.Client, tc.Client], moves: Sequence[list[str]]
) -> None:
    ps, other = trio
    items = await table_of(ps, "items", tc.tables.SGD(1.0), init=tc.tables.Zeros())
    attempts: list[torch.Tensor] = []
    # Where rows move once before an attempt, they do so a second time.
    most = 4 if len(moves) == 1 else 3

    async def step(ctx: tc.Context) -> None:
        parts = (ids_of(items, "ps0"), IDS)
        attempts.append(parts[min(len(attempts), 1)])
        await step_on(ctx, items, attempts[-1])
        if len(attempts) < most:
            raise tc.errors.ContextLostError("lost")

    async def attach() -> None:
        for owners in moves if len(attempts) % 2 else [["ps0", "ps1"]]:
            await other.rebalance(["items"], owners)

    await ps.run(step, attach=attach, attempts=5)
    assert len(attempts) == most and 0 < len(attempts[0]) < len(IDS)
    assert (await items(IDS)).unique().tolist() == [-1.0]
    await ps.run(step)
    assert (await items(IDS)).unique().tolist() == [-2.0]


async def test_owners_that_have_applied_other_passes_apply_each_once(trio: tuple[tc.Client, tc.Client]) -> None:
    """Each of two passes was applied on another owner, and their rows come together."""
    ps, other = trio
    its = await table_of(other, "items", tc.tables.SGD(1.0), init=tc.tables.Zeros())
    items = await table_of(ps, "items", tc.tables.SGD(1.0), init=tc.tables.Zeros())

    async def run(client: tc.Client, table: tc.Table, owner: str, attach: Any) -> None:
        first = ids_of(table, owner)
        attempts: list[int] = []

        async def step(ctx: tc.Context) -> None:
            attempts.append(len(attempts))
            await step_on(ctx, table, IDS if len(attempts) > 1 else first)
            if len(attempts) == 1:
                raise tc.errors.ContextLostError("lost")

        await client.run(step, attach=attach)

    async def move() -> None:
        await other.rebalance(["items"], ["ps2"])

    async def within() -> None:
        await run(other, its, "ps1", move)

    await run(ps, items, "ps0", within)
    assert (await items(IDS)).unique().tolist() == [-2.0]


async def test_a_pass_that_has_begun_where_rows_come_counts_once(trio: tuple[tc.Client, tc.Client]) -> None:
    ps, other = trio
    items = await table_of(ps, "items", tc.tables.SGD(1.0), init=tc.tables.Zeros(), owners=["ps0"])
    net = await ps.module(nn.Linear, 1, 1, owner="ps1", name="net")
    opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.0)
    attempts: list[int] = []

    async def move() -> None:
        await other.rebalance(["items"], ["ps1"])

    async def step(ctx: tc.Context) -> None:
        attempts.append(len(attempts))
        if len(attempts) > 1:
            await ctx.backward((await net(torch.ones(1, 1))).sum())
            await opt.step(ctx)
            await asyncio.get_running_loop().create_task(move(), context=Context())
        await step_on(ctx, items, IDS)
        if len(attempts) == 1:
            raise tc.errors.ContextLostError("lost")

    await ps.run(step)
    assert (await items(IDS)).unique().tolist() == [-1.0]
