"""Sessions that end while a pass is open in which hosted code has called their owner, and the trainer has not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import torch
from torch import nn

import trainer_client as tc
from ps_service.requests import administration
from tests import table_models
from tests.integration.support import bits
from tests.integration.tables.conftest import Group
from tests.waiting import until

IDS, ROWS = torch.arange(40), torch.ones(2, 4)

Step = Callable[[Any, tc.Context, torch.Tensor], Awaitable[Any]]


async def step(opt: Any, ctx: tc.Context, loss: torch.Tensor) -> Any:
    return await opt.step(ctx)


async def apply(opt: Any, ctx: tc.Context, loss: torch.Tensor) -> Any:
    return await asyncio.to_thread(opt.apply, ctx)


async def step_behind_a_backward(opt: Any, ctx: tc.Context, loss: torch.Tensor) -> Any:
    return await ctx.backward(loss, step=opt)


STEPS = pytest.mark.parametrize("made", [step, apply, step_behind_a_backward])


async def lose(group: Group) -> None:
    """Ends the session of the trainer with the first owner, which then begins a new one."""
    engine, session = group.agents["ps0"].engine, group.ps.session("ps0")
    administration.evict_session(engine, administration.session_ids(engine)[group.ps.trainer])
    await until(lambda: session.losses == 1)


@STEPS
@pytest.mark.parametrize("what", ["rows", "all", "rounds"])
async def test_gradients_that_are_gone_with_a_session_are_missed(group: Group, made: Step, what: str) -> None:
    ps = group.ps
    items = await ps.table("items", 4, tc.tables.SGD(1.0), owners=["ps0"])
    net = await ps.module(table_models.Scored, items, 4, name="net", owner="ps1", seed=0)
    other = await ps.module(nn.Linear, 4, 1, name="other", owner="ps0", seed=0)
    opt: Any = items.optimizer
    if what != "rows":
        opt = await ps.optimizer(torch.optim.SGD, [items, *net.parameters(), *other.parameters()], lr=1.0)
    if what == "rounds":
        await opt.parameters.set_policy(tc.policies.Sync(1))
    before = bits([await items(IDS), await net.state_dict()])
    async with ps.context() as ctx:
        await ctx.backward((await net(IDS.view(1, -1))).sum())
        loss = (await net.of_rows(ROWS)).sum()
        await lose(group)
        with pytest.raises(tc.errors.ContextLostError, match="'ps0' has lost its part"):
            await made(opt, ctx, loss)
    assert bits([await items(IDS), await net.state_dict()]) == before


async def test_a_push_that_joins_such_a_pass_is_refused(group: Group) -> None:
    ps = group.ps
    items = await ps.table("items", 4, tc.tables.SGD(1.0), owners=["ps0"])
    net = await ps.module(table_models.Scored, items, 4, name="net", owner="ps1", seed=0)
    head = await ps.module(nn.Linear, 1, 1, name="head", owner="ps0", seed=0)
    opt, replica = await ps.optimizer(torch.optim.SGD, [items, *head.parameters()], lr=1.0), await head.replica()
    before = bits([await items(IDS), await head.state_dict()])
    async with ps.context() as ctx:
        await ctx.backward(replica(await net(IDS.view(1, -1))).sum())
        await lose(group)
        with pytest.raises(tc.errors.ContextLostError, match="'ps0' has lost its part"):
            await replica.push(opt, context=ctx)
    assert bits([await items(IDS), await head.state_dict()]) == before


async def test_the_next_pass_steps(group: Group) -> None:
    ps = group.ps
    items = await ps.table("items", 4, tc.tables.SGD(1.0), owners=["ps0"], init=tc.tables.Zeros())
    await lose(group)

    async def run(ctx: tc.Context) -> None:
        await ctx.backward((await items(IDS)).sum(), step=items.optimizer)

    await ps.run(run)
    assert (await items(IDS) == -1.0).all()


async def test_a_pass_that_the_operator_ends_where_hosted_code_runs_is_run_again(group: Group) -> None:
    """The other owner hears from that one that it is over."""
    ps, (inner, outer) = group.ps, [group.agents[each].engine for each in ("ps0", "ps1")]
    items = await ps.table("items", 4, tc.tables.SGD(1.0), owners=["ps0"], init=tc.tables.Zeros())
    net = await ps.module(table_models.Scored, items, 4, name="net", owner="ps1", seed=0)
    weight = (await net.state_dict())["head.weight"]
    attempts = list[tc.Context]()

    async def run(ctx: tc.Context) -> None:
        attempts.append(ctx)
        await ctx.backward((await net(IDS.view(1, -1))).sum())
        if len(attempts) == 1:
            administration.evict_context(outer, str(ctx.id))
            await until(lambda: not inner.contexts.all())
        await items.optimizer.step(ctx)

    await ps.run(run)
    assert len(attempts) == 2 and torch.equal(await items(IDS), -weight.expand(len(IDS), -1))


async def test_a_pass_that_its_program_has_ended_is_not_run_again(group: Group) -> None:
    net = await group.ps.module(nn.Linear, 4, 1, owner="ps0", seed=0)
    opt = await group.ps.optimizer(torch.optim.SGD, net.parameters(), lr=1.0)
    attempts = list[tc.Context]()

    async def run(ctx: tc.Context) -> None:
        attempts.append(ctx)
        await ctx.backward((await net(ROWS)).sum(), step=opt)
        await opt.step(ctx)

    with pytest.raises(tc.errors.ContextEndedError):
        await group.ps.run(run)
    assert len(attempts) == 1
