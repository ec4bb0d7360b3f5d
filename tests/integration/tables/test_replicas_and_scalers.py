"""Tests of losses that are scaled, in passes of tables, replicas and hosted modules: held to torch's own GradScaler."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import torch

import trainer_client as tc
from tests.integration.tables.test_replicas import (
    DIM,
    ROWS,
    Trainer,
    addresses,
    batches,
    dense_of,
    local_twin,
    same,
    trainer,
)
from tests.training import apart

__all__ = ["addresses"]


@pytest.fixture
async def one(addresses: list[str]) -> AsyncIterator[Trainer]:
    async with tc.connect(*addresses) as ps:
        yield await trainer(ps)


def scaler() -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)


async def scaled_pass(
    one: Trainer, batch: tuple[torch.Tensor, torch.Tensor], own: torch.amp.GradScaler, factor: float, clips: bool
) -> tc.Stepped | None:
    async with one.ps.context() as ctx:
        loss = (await asyncio.to_thread(one.model, *batch)).square().mean() * factor
        await ctx.backward(own.scale(loss))
        if clips:
            unscaling = one.model.unscale_(own, context=ctx, opt=one.opt)
            await ctx.clip_grad_norm(list(one.model.parameters()), 0.01)  # waits for it
            await unscaling
        return await one.model.push(one.opt, context=ctx, scaler=own)


@pytest.mark.parametrize("clips", [False, True])
async def test_training_is_that_of_a_local_scaler(one: Trainer, clips: bool) -> None:
    local, opts = local_twin(one, await one.items(torch.arange(ROWS)))
    mine, theirs = scaler(), scaler()
    for factor, batch in zip((1.0, float("inf"), 2.0, 1.0), batches(4), strict=True):
        for opt in opts:
            opt.zero_grad()
        theirs.scale(local(*batch).square().mean() * factor).backward()
        if clips:
            theirs.unscale_(opts[0])
            torch.nn.utils.clip_grad_norm_(dense_of(local), 0.01)
        for opt in opts:
            theirs.step(opt)
        theirs.update()
        stepped = await apart(scaled_pass(one, batch, mine, factor, clips))
        mine.update()
        assert (stepped is None) == (factor == float("inf"))
        assert mine.get_scale() == theirs.get_scale()
        await same(one, local)


PARTS = ("rows", "replica", "hosted")


class Whole:
    """A step of rows, of replicas and of a hosted module, whose losses do not depend on each other."""

    def __init__(self, one: Trainer, head: tc.RemoteModule, opt: Any) -> None:
        self.one, self.head, self.opt = one, head, opt

    @classmethod
    async def begun(cls, one: Trainer) -> Whole:
        head = await one.ps.module("torch.nn.Linear", DIM, 1, name="head", owner="ps0")
        parameters = [each for net in (*one.nets, head) for each in net.parameters()]
        return cls(one, head, await one.ps.optimizer(torch.optim.SGD, [one.items, *parameters], lr=0.1, name="whole"))

    async def loss(self, factors: dict[str, float]) -> torch.Tensor:
        x, dense = torch.ones(2, DIM), self.one.model.module
        losses = {
            "rows": (await self.one.items(torch.arange(4))).sum(),
            "replica": dense.second(dense.first(x)).sum(),  # type: ignore[operator,union-attr]
            "hosted": (await self.head(x)).sum(),
        }
        return torch.stack([losses[part] * factors.get(part, 1.0) for part in PARTS]).sum()

    async def state(self) -> list[torch.Tensor]:
        hosted = [value for net in (*self.one.nets, self.head) for value in (await net.state_dict()).values()]
        return [await self.one.items(torch.arange(ROWS)), *hosted]


@pytest.mark.parametrize("where", PARTS)
async def test_what_is_not_finite_in_one_part_steps_no_part(one: Trainer, where: str) -> None:
    whole, own = await Whole.begun(one), scaler()
    before = await whole.state()
    for factor in (float("inf"), 1.0):
        async with one.ps.context() as ctx:
            await ctx.backward(own.scale(await whole.loss({where: factor})))
            stepped = await one.model.push(whole.opt, context=ctx, scaler=own)
        own.update()
        same_as_before = [torch.equal(*pair) for pair in zip(before, await whole.state(), strict=True)]
        if factor == 1.0:
            assert stepped is not None and not any(same_as_before) and own.get_scale() == 2.0**9
        else:
            assert stepped is None and all(same_as_before) and own.get_scale() == 2.0**9


async def test_tables_and_modules_of_a_pass_step_with_a_scaler(one: Trainer) -> None:
    """Without a replica: `opt.step(ctx, scaler)` of tables and parameters."""
    whole, own = await Whole.begun(one), scaler()
    before = await whole.state()
    for factor in (float("inf"), 1.0):
        async with one.ps.context() as ctx:
            await ctx.backward(own.scale(await whole.loss({"rows": factor})))
            await whole.opt.unscale(ctx, own)
            stepped = await whole.opt.step(ctx, own, values={"loss": 1.0})
        own.update()
        assert (stepped is None) == (factor != 1.0)
    rows, *dense = await whole.state()
    expected = before[0].clone()
    expected[:4] -= 0.5  # the table's own learning rate
    torch.testing.assert_close(rows, expected)
    assert stepped.reported == {"loss": 1.0}
    torch.testing.assert_close(dense[-1], before[-1] - 0.2)


async def test_parameters_of_this_process_are_unscaled_with_tables(one: Trainer) -> None:
    own, here = scaler(), torch.nn.Parameter(torch.ones(DIM))
    opt = await one.ps.optimizer(torch.optim.SGD, [one.items, here], lr=0.1)
    for factor in (float("nan"), 1.0):
        async with one.ps.context() as ctx:
            loss = (await one.items(torch.arange(4))).sum() + (here * factor).sum()
            await ctx.backward(own.scale(loss))
            assert (await opt.step(ctx, own) is None) == (factor != 1.0)
        own.update()
    torch.testing.assert_close(here.detach(), torch.full((DIM,), 0.9))


async def test_a_scaler_that_is_switched_off_changes_nothing(one: Trainer) -> None:
    own = torch.amp.GradScaler("cpu", enabled=False)
    local, opts = local_twin(one, await one.items(torch.arange(ROWS)))
    batch = next(batches(1))
    assert await apart(scaled_pass(one, batch, own, 1.0, clips=False)) is not None
    for opt in opts:
        opt.zero_grad()
    local(*batch).square().mean().backward()
    for opt in opts:
        opt.step()
    await same(one, local)


async def test_a_policy_waits_for_the_next_push_of_a_trainer_that_skips(addresses: list[str]) -> None:
    async with tc.connect(*addresses) as ps, tc.connect(*addresses) as other:
        group = [await trainer(ps, tc.policies.Sync(2)), await trainer(other, tc.policies.Sync(2))]
        own = [scaler(), scaler()]
        batch = next(batches(1))
        skipped = await apart(scaled_pass(group[0], batch, own[0], float("inf"), clips=False))
        assert skipped is None
        own[0].update()
        found = await asyncio.gather(
            *(apart(scaled_pass(each, batch, of, 1.0, False)) for each, of in zip(group, own, strict=True))
        )
        assert [each.counted for each in found if each is not None] == [2, 2]


async def test_what_makes_no_sense_is_refused(one: Trainer) -> None:
    whole, own = await Whole.begun(one), scaler()
    async with one.ps.context() as ctx:
        await ctx.backward(own.scale(await whole.loss({})))
        with pytest.raises(tc.errors.InvalidArgumentError, match="takes the optimizer, too"):
            one.model.unscale_(own, context=ctx)
        await whole.opt.unscale(ctx, own)
        with pytest.raises(tc.errors.InvalidArgumentError, match=r"unscale_\(scaler, context=ctx, opt=opt\)"):
            await one.model.push(whole.opt, context=ctx, scaler=own)
    async with one.ps.context() as ctx:
        own = scaler()
        await ctx.backward(own.scale(await whole.loss({})))
        await one.model.unscale_(own, context=ctx, opt=whole.opt)
        with pytest.raises(RuntimeError, match="already been called"):
            await one.model.unscale_(own, context=ctx, opt=whole.opt)
        assert await one.model.push(whole.opt, context=ctx, scaler=own) is not None


def test_a_plain_program_scales(owner_beside: str) -> None:
    with tc.connect(owner_beside) as ps:
        items = ps.table("items", DIM, tc.tables.SGD(lr=0.5), rows=ROWS)
        net = ps.module("torch.nn.Linear", DIM, 1, name="net")
        replica = net.replica()
        opt = ps.optimizer(torch.optim.SGD, [items, *net.parameters()], lr=0.1)
        own = scaler()
        for factor in (float("inf"), 1.0):
            with ps.context() as ctx:
                ctx.backward(own.scale(replica(items(torch.arange(4))).sum() * factor))
                replica.unscale_(own, context=ctx, opt=opt)
                assert (replica.push(opt, context=ctx, scaler=own) is None) == (factor != 1.0)
            own.update()
        assert own.get_scale() == 2.0**9
