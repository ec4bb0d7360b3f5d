"""Passes that an owner has lost because it was killed, and whose rows or objects have left it before they step."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import trainer_client as tc
from tests import table_models
from tests.integration.restarting import Owner
from tests.integration.support import bits
from tests.integration.tables.moving import NAMES, rows_of, table_of
from trainer_client.contexts.closing import Closing
from trainer_client.rpc.agent import Agent
from trainer_client.rpc.joining import join
from trainer_client.session.settings import Settings

IDS, X = torch.arange(40), torch.ones(2, 4)

Step = Callable[[Any, tc.Context], Awaitable[Any]]


async def step(opt: Any, ctx: tc.Context) -> Any:
    return await opt.step(ctx)


async def apply(opt: Any, ctx: tc.Context) -> Any:
    return await asyncio.to_thread(opt.apply, ctx)


async def scaled(opt: Any, ctx: tc.Context) -> Any:
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    scaler.scale(torch.ones(()))  # makes its scale
    return await opt.step(ctx, scaler)


STEPS = pytest.mark.parametrize("made", [step, apply, scaled])
KNOWN = pytest.mark.parametrize(
    ("made", "is_known"), [(step, False), (step, True), (apply, True), (scaled, True), (scaled, False)]
)
"""Whether another pass has heard before where the rows or objects are."""


class Group:
    """Three owners with logs, a trainer, and a program that moves what they have."""

    def __init__(self, owners: dict[str, Owner], ps: tc.Client, mover: tc.Client) -> None:
        self.owners, self.ps, self.mover = owners, ps, mover
        self.members: dict[str, Agent] = {}

    async def join(self, name: str, directory: str = "") -> None:
        """Has an owner find the others."""
        address = self.owners[directory].address if directory else ""
        self.members[name] = await join(self.owners[name].server, Settings(shared_memory=False), address)

    async def lose(self, name: str) -> None:
        """Kills the first owner, and moves what has a name from there to the last one."""
        if "ps0" in self.members:
            await self.members.pop("ps0").stop()
            await self.owners["ps0"].start()
            await self.join("ps0", "ps1")
        else:
            await self.owners["ps0"].crash()
        if name == "net":
            await self.mover.move(name, to="ps2", owner="ps0", pause=10.0)
        else:
            await self.mover.drain("ps0", "ps2", [name], pause=10.0)


@pytest.fixture
async def group(tmp_path: Path) -> AsyncIterator[Group]:
    async with AsyncExitStack() as stack:
        owners = [Owner(tmp_path / each, each, [table_models], durability="interval:1") for each in NAMES]
        for each in owners:
            await stack.enter_async_context(each)
        clients = [await stack.enter_async_context(tc.connect(*(each.address for each in owners))) for _ in range(2)]
        made = Group({each.name: each for each in owners}, *clients)
        yield made
        for each in made.members.values():
            await each.stop()


async def outside(begin: Callable[[], Awaitable[Any]]) -> Any:
    """What another task does while a pass is open."""

    async def run() -> Any:
        return await begin()

    return await asyncio.create_task(run(), context=contextvars.Context())


@KNOWN
@pytest.mark.parametrize("owners", [["ps0"], ["ps0", "ps1"]], ids=["one owner", "two"])
async def test_a_step_of_rows(group: Group, made: Step, is_known: bool, owners: list[str]) -> None:
    items = await table_of(group.ps, "items", tc.tables.SGD(1.0), owners=owners)
    before = bits([await items(IDS)])
    async with group.ps.context() as ctx:
        await ctx.backward((await items(IDS)).sum())
        await outside(lambda: group.lose("items"))
        if is_known:
            await outside(lambda: items(IDS))
        with pytest.raises(tc.errors.ContextLostError):
            await made(items.optimizer, ctx)
    assert bits([await items(IDS)]) == before and items.owners == [*owners[1:], "ps2"]


@pytest.mark.parametrize("is_known", [False, True])
async def test_unscaling_rows(group: Group, is_known: bool) -> None:
    items = await table_of(group.ps, "items", tc.tables.SGD(1.0))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    async with group.ps.context() as ctx:
        await ctx.backward(scaler.scale((await items(IDS)).sum()))
        await outside(lambda: group.lose("items"))
        if is_known:
            await outside(lambda: items(IDS))
        with pytest.raises(tc.errors.ContextLostError):
            await items.optimizer.unscale(ctx, scaler)


@STEPS
async def test_a_step_of_rows_and_parameters_together(group: Group, made: Step) -> None:
    items = await table_of(group.ps, "items", tc.tables.SGD(1.0))
    net = await group.ps.module(nn.Linear, 4, 1, owner="ps1", seed=0)
    opt = await group.ps.optimizer(torch.optim.SGD, [items, *net.parameters()], lr=1.0)
    before = bits([await items(IDS), await net.state_dict()])
    async with group.ps.context() as ctx:
        await ctx.backward((await net(await items(IDS))).sum())
        await outside(lambda: group.lose("items"))
        await outside(lambda: items(IDS))
        with pytest.raises(tc.errors.ContextLostError):
            await made(opt, ctx)
    assert bits([await items(IDS), await net.state_dict()]) == before


async def backward(ctx: tc.Context, loss: torch.Tensor, opt: Any) -> Any:
    return await ctx.backward(loss, step=opt)


async def propagate(ctx: tc.Context, loss: torch.Tensor, opt: Any) -> Any:
    return await asyncio.to_thread(ctx.propagate, loss, step=opt)


@pytest.mark.parametrize("made", [backward, propagate])
@pytest.mark.parametrize("is_joint", [False, True], ids=["alone", "with parameters"])
async def test_a_step_behind_a_backward_on_their_new_owner(
    group: Group, made: Callable[[tc.Context, torch.Tensor, Any], Awaitable[Any]], is_joint: bool
) -> None:
    """The last request of the backward could ask for the step."""
    items = await table_of(group.ps, "items", tc.tables.SGD(1.0), owners=["ps0"])
    net = await group.ps.module(nn.Linear, 4, 1, owner="ps2", seed=0)
    joint = await group.ps.optimizer(torch.optim.SGD, [items, *net.parameters()], lr=1.0)
    before = bits([await items(IDS), await net.state_dict()])
    async with group.ps.context() as ctx:
        await ctx.backward((await items(IDS)).sum())
        loss = (await net(X)).sum()
        await outside(lambda: group.lose("items"))
        await outside(lambda: items(IDS))
        with pytest.raises(tc.errors.ContextLostError):
            await made(ctx, loss, joint if is_joint else items.optimizer)
    assert bits([await items(IDS), await net.state_dict()]) == before and items.owners == ["ps2"]


async def test_a_step_of_a_module_behind_a_backward_of_another(group: Group) -> None:
    net, other = [
        await group.ps.module(nn.Linear, 4, 1, name=name, owner=owner, seed=0)
        for name, owner in (("net", "ps0"), ("other", "ps2"))
    ]
    opts = [await group.ps.optimizer(torch.optim.SGD, each.parameters(), lr=1.0) for each in (net, other)]
    before = bits([await net.state_dict(), await other.state_dict()])
    async with group.ps.context() as ctx:
        await ctx.backward((await net(X)).sum())
        loss = (await other(X)).sum()
        await outside(lambda: group.lose("net"))
        await outside(net.state_dict)
        with pytest.raises(tc.errors.ContextLostError):
            await ctx.backward(loss, step=opts)
    assert bits([await net.state_dict(), await other.state_dict()]) == before


async def test_a_step_of_rows_that_hosted_code_has_looked_up(group: Group) -> None:
    """The trainer has asked another owner only."""
    await group.join("ps1")
    await group.join("ps0", "ps1")
    await group.join("ps2", "ps1")
    items = await table_of(group.ps, "items", tc.tables.SGD(1.0), owners=["ps0"])
    net = await group.ps.module(table_models.Scored, items, 4, owner="ps1", seed=0)
    before = bits([await items(IDS)])
    async with group.ps.context() as ctx:
        await ctx.backward((await net(IDS.view(1, -1))).sum())
        await outside(lambda: group.lose("items"))
        await outside(lambda: items(IDS))
        with pytest.raises(tc.errors.ContextLostError):
            await items.optimizer.step(ctx)
    assert bits([await items(IDS)]) == before


@pytest.mark.parametrize("is_used", [True, False], ids=["used", "unused"])
async def test_a_step_of_rows_that_have_left_an_owner_that_is_away(group: Group, is_used: bool) -> None:
    """Whether hosted code has looked them up there is known by the owner that it runs on."""
    await group.join("ps1")
    await group.join("ps0", "ps1")
    await group.join("ps2", "ps1")
    items = await table_of(group.ps, "items", tc.tables.SGD(1.0), owners=["ps0"])
    others = await table_of(group.ps, "others", tc.tables.SGD(1.0), owners=["ps1"], init=tc.tables.Zeros())
    net = await group.ps.module(table_models.Scored, items, 4, owner="ps1", seed=0)
    opt = await group.ps.optimizer(None, [items, others])
    before = bits([await items(IDS)])
    async with group.ps.context() as ctx:
        loss = (await others(IDS)).sum()
        await ctx.backward(loss + (await net(IDS.view(1, -1))).sum() if is_used else loss)
        await outside(lambda: group.lose("items"))
        await outside(lambda: items(IDS))
        await group.members.pop("ps0").stop()
        if is_used:
            with pytest.raises(tc.errors.ContextLostError, match="'ps0'"):
                await opt.step(ctx)
        else:
            await opt.step(ctx)
    assert bits([await items(IDS)]) == before
    assert (await others(IDS) == (0.0 if is_used else -1.0)).all()
    await group.owners["ps0"].start()


@KNOWN
async def test_a_step_of_a_module(group: Group, made: Step, is_known: bool) -> None:
    net = await group.ps.module(nn.Linear, 4, 1, name="net", owner="ps0", seed=0)
    opt = await group.ps.optimizer(torch.optim.SGD, net.parameters(), lr=1.0)
    before = bits([await net.state_dict()])
    async with group.ps.context() as ctx:
        await ctx.backward((await net(X)).sum())
        await outside(lambda: group.lose("net"))
        if is_known:
            assert bits([await outside(net.state_dict)]) == before
        with pytest.raises(tc.errors.ContextLostError):
            await made(opt, ctx)
    assert bits([await net.state_dict()]) == before and net.owner == "ps2"


async def test_a_norm_is_of_all_gradients(group: Group) -> None:
    """Another module could step with gradients that were clipped by a part of the norm."""
    nets = [
        await group.ps.module(nn.Linear, 4, 1, name=name, owner=owner, seed=0)
        for name, owner in (("net", "ps0"), ("other", "ps1"))
    ]
    parameters = [parameter for each in nets for parameter in each.parameters()]
    async with group.ps.context() as ctx:
        await ctx.backward([(await each(X)).sum() for each in nets])
        await outside(lambda: group.lose("net"))
        await outside(nets[0].state_dict)
        with pytest.raises(tc.errors.ContextLostError):
            await ctx.clip_grad_norm(parameters, 1.0)
    async with group.ps.context() as ctx:
        await ctx.backward([(await each(X)).sum() for each in nets])
        assert (await ctx.clip_grad_norm(parameters, 1.0)).item() == pytest.approx(40**0.5)


@STEPS
async def test_a_step_of_an_optimizer_that_was_made_after_the_move(group: Group, made: Step) -> None:
    net = await group.ps.module(nn.Linear, 4, 1, name="net", owner="ps0", seed=0)
    before = bits([await net.state_dict()])
    async with group.ps.context() as ctx:
        await ctx.backward((await net(X)).sum())
        await outside(lambda: group.lose("net"))
        opt = await outside(lambda: group.ps.optimizer(torch.optim.SGD, net.parameters(), lr=1.0))
        with pytest.raises(tc.errors.ContextLostError):
            await made(opt, ctx)
    assert bits([await net.state_dict()]) == before


@STEPS
async def test_a_step_of_a_table_that_was_asked_for_again_after_the_move(group: Group, made: Step) -> None:
    items = await table_of(group.ps, "items", tc.tables.SGD(1.0))
    before = bits([await items(IDS)])
    async with group.ps.context() as ctx:
        await ctx.backward((await items(IDS)).sum())
        await outside(lambda: group.lose("items"))
        again = await outside(lambda: group.ps.table("items"))
        with pytest.raises(tc.errors.ContextLostError):
            await made(again.optimizer, ctx)
    assert bits([await items(IDS)]) == before


async def test_an_optimizer_that_is_made_in_a_pass_steps(group: Group) -> None:
    nets = [await group.ps.module(nn.Linear, 4, 1, owner=each, seed=0) for each in ("ps0", "ps1")]
    async with group.ps.context() as ctx:
        await ctx.backward([(await each(X)).sum() for each in nets])
        for each in nets:
            opt = await group.ps.optimizer(torch.optim.SGD, each.parameters(), lr=1.0)
            assert await opt.step(ctx) == {each.owner: 1}


@pytest.mark.parametrize("is_listed", [False, True], ids=["one optimizer", "several"])
async def test_a_pass_that_is_run_again_steps_once(
    group: Group, monkeypatch: pytest.MonkeyPatch, is_listed: bool
) -> None:
    """The owner is killed between the backward and the steps that follow it."""
    items, others = [
        await table_of(group.ps, each, tc.tables.SGD(1.0), init=tc.tables.Zeros()) for each in ("items", "others")
    ]
    original, runs = Closing._step, list[float]()

    async def later(closing: Closing, refused: bool) -> Any:
        if len(runs) == 1:
            await outside(lambda: group.lose("items"))
            await outside(lambda: items(IDS))
        return await original(closing, refused)

    async def run(ctx: tc.Context) -> None:
        loss = (await items(IDS)).sum() + (await others(IDS)).sum()
        runs.append(loss.item())
        await ctx.backward(loss, step=[items.optimizer, others.optimizer] if is_listed else items.optimizer)

    monkeypatch.setattr(Closing, "_step", later)
    await group.ps.run(run)
    assert runs == [0.0, 0.0]
    assert (await items(IDS) == -1.0).all() and (await others(IDS) == (-1.0 if is_listed else 0.0)).all()
    assert len(await rows_of(items)) == len(IDS)


async def test_a_pass_that_has_used_nothing_there_steps(group: Group) -> None:
    """Rows leave an owner that lives; and a pass that was open uses what is on others."""
    items = await table_of(group.ps, "items", tc.tables.SGD(1.0), owners=["ps0"])
    others = await table_of(group.ps, "others", tc.tables.SGD(1.0), init=tc.tables.Zeros())
    opt = await group.ps.optimizer(None, [items, others])
    before = bits([await items(IDS)])
    async with group.ps.context() as ctx:
        await ctx.backward((await others(IDS)).sum())
        await outside(lambda: group.mover.drain("ps0", "ps2", ["items"], pause=10.0))
        await outside(lambda: items(IDS))
        assert set(await opt.step(ctx)) == {"ps2/items", "ps0/others", "ps1/others"}
    assert bits([await items(IDS)]) == before and (await others(IDS) == -1.0).all()
