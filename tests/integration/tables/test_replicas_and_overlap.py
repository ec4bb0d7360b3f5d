"""Tests of overlapping pushes that join passes: the pass outlives its block, and ends with the push."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn, optim

import trainer_client as tc
from ps_service.server import Server
from ps_wire.compression.choice import Choice
from tests.training import owners
from tests.waiting import until

DIM, ROWS = 3, 12
THIRDS = torch.arange(ROWS).view(3, 4)
"""Ids of batches in turn. What a look-up finds does not depend on whether the two pushes before have stepped."""


class Trainer(NamedTuple):
    """A table on all owners, a replica of a layer, and one optimizer of both."""

    ps: tc.Client
    items: tc.Table
    net: tc.RemoteModule
    model: Any
    opt: tc.tables.OptimizerWithTables

    async def step(self, number: int, x: torch.Tensor, **more: Any) -> tc.Stepped | None:
        factor = more.pop("factor", 1.0)
        async with self.ps.context() as ctx:
            loss = self.loss(self.model, await self.items(THIRDS[number % 3]), x) * factor
            await ctx.backward(loss)
            return await self.model.push(self.opt, context=ctx, **more)

    @staticmethod
    def loss(net: Any, rows: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = (net(x) + rows).square().mean()
        return found


async def begun(
    ps: tc.Client, overlap: int, several: bool, policy: tc.policies.Policy | None = None, **more: Any
) -> Trainer:
    items = await ps.table("items", DIM, tc.tables.SGD(lr=0.5), rows=ROWS, init=tc.tables.Normal(1.0), policy=policy)
    net = await ps.module("torch.nn.Linear", DIM, DIM, name="net", seed=1, owner="ps0")
    options = {"lr": 0.1, "momentum": 0.9, **{key: more.pop(key) for key in ("non_finite",) if key in more}}
    opt = await ps.optimizer(optim.SGD, [items, *net.parameters()], policy=policy, **options)
    model: Any = await net.replica(overlap=0 if several else overlap, **more)
    if several:
        model = ps.replicas(nn.Sequential(model), overlap=overlap)
    return Trainer(ps, items, net, model, opt)


@asynccontextmanager
async def trainer(overlap: int, several: bool = False, **more: Any) -> AsyncIterator[tuple[list[Server], Trainer]]:
    async with owners("ps0", "ps1") as servers, tc.connect(*(each.address for each in servers)) as ps:
        yield servers, await begun(ps, overlap, several, **more)


def batches(count: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(count)
    return [torch.randn(4, DIM, generator=generator) for _ in range(count)]


async def open_passes(servers: list[Server]) -> None:
    """Waits until no owner has an open pass."""
    await until(lambda: not any(len(each.engine.contexts) for each in servers))


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("overlap", [1, 2])
async def test_dense_gradients_are_delayed_by_the_overlap_and_rows_are_not(overlap: int, several: bool) -> None:
    async with trainer(overlap, several) as (servers, one):
        rows = (await one.items(torch.arange(ROWS))).clone()
        net = nn.Linear(DIM, DIM)
        net.load_state_dict(await one.net.state_dict())
        opt = optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        seen = [copy.deepcopy(net) for _ in range(overlap + 1)]  # the layers of forwards to come
        found = []
        for number, x in enumerate(batches(7)):
            found.append(await one.step(number, x))
            forward = seen.pop(0)
            chosen = rows[THIRDS[number % 3]].clone().requires_grad_()
            forward.zero_grad()
            one.loss(forward, chosen, x).backward()
            for mine, theirs in zip(net.parameters(), forward.parameters(), strict=True):
                mine.grad = theirs.grad
            opt.step()
            seen.append(copy.deepcopy(net))
            assert chosen.grad is not None
            rows[THIRDS[number % 3]] -= 0.5 * chosen.grad
            for mine, theirs in zip(one.model.parameters(), seen[0].parameters(), strict=True):
                torch.testing.assert_close(mine, theirs)
        assert found[:overlap] == [None] * overlap
        assert [each["ps0"] for each in found[overlap:] if each is not None] == list(range(1, 8 - overlap))
        assert [each["ps0"] for each in await one.model.finish() if each is not None] == list(range(8 - overlap, 8))
        for mine, theirs in zip(one.model.parameters(), net.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs)
        torch.testing.assert_close(await one.items(torch.arange(ROWS)), rows)
        await open_passes(servers)


async def test_the_pass_is_over_for_the_program_once_it_was_pushed() -> None:
    async with trainer(1) as (servers, one):
        async with one.ps.context() as ctx:
            await ctx.backward(one.loss(one.model, await one.items(THIRDS[0]), torch.ones(4, DIM)))
            assert await one.model.push(one.opt, context=ctx) is None
            assert ctx.ended
            assert not (await one.items(THIRDS[0])).requires_grad  # a call after the pass is not recorded
            with pytest.raises(tc.errors.ContextEndedError, match="with a push that has an overlap"):
                await one.model.push(one.opt, context=ctx)
        (stepped,) = await one.model.finish()
        assert stepped is not None and stepped["ps0/items"] == 1
        await open_passes(servers)


async def test_an_error_comes_with_the_next_push_and_leaves_no_pass_open() -> None:
    async with trainer(1, non_finite="refuse") as (servers, one):
        before = await one.net.state_dict()
        assert await one.step(0, torch.full((4, DIM), float("nan"))) is None
        with pytest.raises(tc.errors.NonFiniteGradientError):
            await one.step(1, torch.ones(4, DIM))
        (stepped,) = await one.model.finish()
        assert stepped is not None and stepped["ps0"] == 1
        assert not torch.equal((await one.net.state_dict())["weight"], before["weight"])
        await open_passes(servers)


async def test_gradients_that_cannot_be_written_end_the_pass() -> None:
    async with trainer(1, compress=Choice(tc.codecs.Int8(), min_numel=0)) as (servers, one):
        with pytest.raises(tc.errors.NonFiniteGradientError):
            await one.step(0, torch.full((4, DIM), float("inf")))
        await open_passes(servers)
        assert await one.step(0, torch.ones(4, DIM)) is None
        (stepped,) = await one.model.finish()
        assert stepped is not None and stepped["ps0"] == 1


@pytest.mark.parametrize("several", [False, True])
async def test_a_push_that_is_cancelled_before_its_turn_ends_its_pass(several: bool) -> None:
    policy = tc.policies.Sync(2)
    async with trainer(1, several, policy=policy) as (servers, one):
        assert await one.step(0, torch.ones(4, DIM)) is None  # waits for another trainer
        turn = one.model._overlap._turn
        late = asyncio.ensure_future(one.step(1, torch.ones(4, DIM)))
        await until(lambda: one.model._overlap._turn is not turn)
        late.cancel()
        with pytest.raises(asyncio.CancelledError):
            await late
        async with tc.connect(*(each.address for each in servers)) as ps:
            two = await begun(ps, 0, several)
            stepped = await two.step(0, torch.ones(4, DIM))
            assert stepped is not None and stepped.counted == 2 and stepped["ps0"] == 1
        (first,) = await one.model.finish()
        assert first is not None and first.counted == 2
        await open_passes(servers)


async def test_a_client_that_closes_leaves_no_pass_open() -> None:
    async with trainer(2, policy=tc.policies.Sync(2)) as (servers, one):
        for number in range(2):
            assert await one.step(number, torch.ones(4, DIM)) is None
        await one.ps.close()
        await open_passes(servers)


async def test_a_scaler_decides_for_each_push_before_it_is_updated() -> None:
    async with trainer(1) as (servers, one):
        own = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1000)
        before = await one.net.state_dict()
        factors = (1.0, float("inf"), 1.0)
        found = []
        for number, factor in enumerate(factors):
            scale = own.get_scale()
            found.append(await one.step(number, torch.ones(4, DIM), factor=own.scale(torch.tensor(factor)), scaler=own))
            own.update()
            assert own.get_scale() == scale * (0.5 if factor == float("inf") else 1.0)
        # The second was skipped, so the third has the outcome of the first.
        assert [each and each["ps0"] for each in found] == [None, None, 1]
        (last,) = await one.model.finish()
        assert last is not None and last["ps0"] == 2
        assert all(value.isfinite().all() for value in (await one.net.state_dict()).values())
        assert not torch.equal((await one.net.state_dict())["weight"], before["weight"])
        await open_passes(servers)


async def test_the_block_of_a_pass_waits_for_a_push_that_nobody_awaits() -> None:
    async with trainer(0) as (servers, one):
        async with one.ps.context() as ctx:
            await ctx.backward(one.loss(one.model, await one.items(THIRDS[0]), torch.ones(4, DIM)))
            pushed = one.model.push(one.opt, context=ctx)
        assert pushed.settled
        stepped = await pushed
        assert stepped is not None and stepped["ps0"] == 1
        await open_passes(servers)


async def test_a_pass_that_is_run_again_counts_once() -> None:
    async with trainer(1) as (servers, one):
        tries: list[Any] = []

        async def step(ctx: tc.Context) -> None:
            await ctx.backward(one.loss(one.model, await one.items(THIRDS[0]), torch.ones(4, DIM)))
            tries.append(await one.model.push(one.opt, context=ctx))
            if len(tries) == 1:
                raise tc.errors.ContextLostError("as if a push before had lost its pass")

        await one.ps.run(step)
        (last,) = await one.model.finish()
        assert tries[0] is None and tries[1] == last and last is not None
        assert {last["ps0"], last["ps0/items"], last["ps1/items"]} == {1}
        await open_passes(servers)
