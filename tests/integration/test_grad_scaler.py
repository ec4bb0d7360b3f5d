"""A `torch.amp.GradScaler` scales remote gradients as it scales local ones, and skips everywhere or nowhere."""

from __future__ import annotations

import asyncio
import copy
import gc
import weakref
from collections.abc import AsyncIterator
from typing import Any

import pytest
import torch
from torch import nn, optim

import trainer_client as tc
from tests.training import identical, training, twin

SIZE = 4
HUGE = 1e30
"""Squared, it is infinite in float32."""


class Model:
    """A layer on each of two owners, an embedding, and a layer here; with twins, and an optimizer for both."""

    def __init__(self, ps: tc.Client, where: str) -> None:
        self.ps = ps
        self.where = where

    async def make(self) -> None:
        layers = {"both": ["ps0", "ps1", ""], "owners": ["ps0", "ps1"], "one": ["ps0"], "here": [""]}[self.where]
        self.parts: list[Any] = []
        self.twins: list[nn.Module] = []
        for owner in layers:
            local = nn.Linear(SIZE, SIZE)
            if owner:
                self.parts.append(await self.ps.module("torch.nn.Linear", SIZE, SIZE, owner=owner))
                await twin(self.parts[-1], local)
            else:
                self.parts.append(copy.deepcopy(local))
            self.twins.append(local)
        parameters = [each for part in self.parts for each in part.parameters()]
        self.opt = await self.ps.optimizer(optim.SGD, parameters, lr=0.01, momentum=0.9)
        self.parameters = parameters
        self.local_parameters = [each for part in self.twins for each in part.parameters()]
        self.local_opt = optim.SGD(self.local_parameters, lr=0.01, momentum=0.9)

    async def loss(self, x: torch.Tensor) -> torch.Tensor:
        # Each layer has a loss of its own, so that one of them may overflow alone.
        losses = []
        for part, row in zip(self.parts, x, strict=False):
            y = part(row) if isinstance(part, nn.Module) else await part(row)
            losses.append(y.square().sum())
        return torch.stack(losses).sum()

    def local_loss(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([part(row).square().sum() for part, row in zip(self.twins, x, strict=False)]).sum()

    async def compare(self) -> None:
        for part, local in zip(self.parts, self.twins, strict=True):
            state = part.state_dict() if isinstance(part, nn.Module) else await part.state_dict()
            assert identical(dict(state), dict(local.state_dict()))


@pytest.fixture(params=["both", "owners", "one", "here"])
async def model(request: pytest.FixtureRequest) -> AsyncIterator[Model]:
    async with training("ps0", "ps1") as (_, ps):
        made = Model(ps, request.param)
        await made.make()
        yield made


def scaler(**changes: Any) -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", **{"init_scale": 2.0**10, "growth_interval": 2, **changes})


def batches(parts: int) -> list[torch.Tensor]:
    """Ten, of which some make the loss of one part infinite."""
    found = [torch.randn(parts, 3, SIZE) for _ in range(10)]
    for number, part in ((1, 0), (2, parts - 1), (6, parts // 2)):
        found[number][part] *= HUGE
    return found


@pytest.mark.parametrize(
    ("model", "clips"),
    [("both", False), ("both", True), ("owners", False), ("one", True), ("here", False)],
    indirect=["model"],
)
async def test_training_is_that_of_a_local_scaler(model: Model, clips: bool) -> None:
    # A factor that is no power of two, so that every multiplication rounds.
    ours, local = (scaler(init_scale=1000.0, growth_factor=1.7, backoff_factor=0.3) for _ in range(2))
    skipped = []
    for x in batches(len(model.parts)):
        async with model.ps.context() as ctx:
            await ctx.backward(ours.scale(await model.loss(x)))
            if clips:
                await model.opt.unscale(ctx, ours)
                norm = await ctx.clip_grad_norm(model.parameters, 1e9)
            versions = await model.opt.step(ctx, ours)
            ours.update()
        model.local_opt.zero_grad()
        local.scale(model.local_loss(x)).backward()
        if clips:
            local.unscale_(model.local_opt)
            torch.testing.assert_close(norm, nn.utils.clip_grad_norm_(model.local_parameters, 1e9), equal_nan=True)
        before = copy.deepcopy(model.local_opt.state_dict())
        local.step(model.local_opt)
        local.update()
        assert (versions is None) == identical(before, model.local_opt.state_dict())
        skipped.append(versions is None)
        assert ours.state_dict() == local.state_dict()
        await model.compare()
    assert skipped == [number in (1, 2, 6) for number in range(10)]


async def test_gradients_are_unscaled_on_owners_and_here(model: Model) -> None:
    x, scale = torch.randn(len(model.parts), 3, SIZE), scaler()
    model.local_loss(x).backward()
    async with model.ps.context() as ctx:
        await ctx.backward(scale.scale(await model.loss(x)))
        await model.opt.unscale(ctx, scale)
        found = await ctx.get_gradients()
        for ours, local in zip(model.parameters, model.local_parameters, strict=True):
            assert identical(found[ours], local.grad)
        with pytest.raises(RuntimeError, match="already been called"):
            await model.opt.unscale(ctx, scale)
        again = await ctx.get_gradients()
        assert all(identical(again[ours], found[ours]) for ours in model.parameters)
        await model.opt.step(ctx, scale)
        again_warns = pytest.warns(UserWarning, match="one context per step")
        with again_warns, pytest.raises(RuntimeError, match="already been called"):
            await model.opt.step(ctx, scale)


async def test_a_scaler_that_is_switched_off_changes_nothing(model: Model) -> None:
    off = torch.amp.GradScaler("cpu", enabled=False)
    x = torch.randn(len(model.parts), 3, SIZE)
    model.local_loss(x).backward()
    model.local_opt.step()
    async with model.ps.context() as ctx:
        await ctx.backward(off.scale(await model.loss(x)))
        await model.opt.unscale(ctx, off)
        assert await model.opt.step(ctx, off) == {owner: 1 for owner in model.opt.remotes}
    await model.compare()


async def test_another_pass_is_not_taken_for_the_one_that_was_unscaled() -> None:
    async with training() as (_, ps):
        model = Model(ps, "one")
        await model.make()
        scale = scaler()
        for x in (torch.ones(1, 3, SIZE), HUGE * torch.ones(1, 3, SIZE)):
            async with ps.context() as ctx:
                await ctx.backward(scale.scale(await model.loss(x)))
                await model.opt.unscale(ctx, scale)
            async with ps.context() as ctx:
                await ctx.backward(scale.scale(await model.loss(torch.ones(1, 3, SIZE))))
                with pytest.raises(RuntimeError, match="another pass"):
                    await model.opt.step(ctx, scale)
            scale.update()
        await model.compare()


async def test_without_gradients_a_scaler_raises_its_own_error() -> None:
    async with training("ps0", "ps1") as (_, ps):
        model = Model(ps, "both")
        await model.make()
        scale = scaler()
        async with ps.context() as ctx:
            scale.scale(torch.ones(()))
            with pytest.raises(AssertionError, match="No inf checks"):
                await model.opt.step(ctx, scale)


async def test_sparse_gradients_are_unscaled() -> None:
    async with training() as (_, ps):
        table = await ps.module("torch.nn.Embedding", 5, SIZE, sparse=True)
        local = await twin(table, nn.Embedding(5, SIZE, sparse=True))
        opt, local_opt = (
            await ps.optimizer(optim.SGD, table.parameters(), lr=0.5),
            optim.SGD(local.parameters(), lr=0.5),
        )
        ours, theirs = scaler(init_scale=1000.0), scaler(init_scale=1000.0)
        ids = torch.tensor([0, 3, 3])
        for factor in (1.0, HUGE, 2.0):
            async with ps.context() as ctx:
                await ctx.backward(ours.scale(((await table(ids)) * factor * factor).sum()))
                await opt.step(ctx, ours)
                ours.update()
            local_opt.zero_grad()
            theirs.scale((local(ids) * factor * factor).sum()).backward()
            theirs.step(local_opt)
            theirs.update()
            assert ours.state_dict() == theirs.state_dict()
            assert identical(dict(await table.state_dict()), dict(local.state_dict()))


# What is refused, on all parts or none


@pytest.fixture
async def refusing() -> AsyncIterator[Model]:
    async with training("ps0", "ps1") as (_, ps):
        model = Model(ps, "both")
        await model.make()
        model.opt = await ps.optimizer(optim.SGD, model.parameters, lr=0.01, non_finite="refuse", name="refusing")
        yield model


@pytest.mark.parametrize(("bad", "where"), [(0, "owner 'ps0'"), (1, "owner 'ps1'"), (2, "local parameter")])
async def test_a_step_that_one_part_refuses_is_applied_by_none(refusing: Model, bad: int, where: str) -> None:
    x = torch.randn(3, 3, SIZE)
    x[bad] *= HUGE
    async with refusing.ps.context() as ctx:
        await ctx.backward(await refusing.loss(x))
        with pytest.raises(tc.errors.NonFiniteGradientError, match=where):
            await refusing.opt.step(ctx)
    await refusing.compare()
    async with refusing.ps.context() as ctx:
        await ctx.backward(await refusing.loss(torch.randn(3, 3, SIZE)))
        assert await refusing.opt.step(ctx) == {"ps0": 1, "ps1": 1}


async def test_a_scaler_skips_a_step_that_would_be_refused(refusing: Model) -> None:
    scale = scaler()
    x = torch.randn(3, 3, SIZE)
    x[2] *= HUGE
    async with refusing.ps.context() as ctx:
        await ctx.backward(scale.scale(await refusing.loss(x)))
        assert await refusing.opt.step(ctx, scale) is None
    scale.update()
    assert scale.get_scale() == 2.0**9
    await refusing.compare()


@pytest.mark.parametrize("clips", [False, True])
def test_without_await(owner_process_address: str, clips: bool) -> None:
    ours, theirs = scaler(), scaler()
    with tc.connect(owner_process_address) as ps:
        net = ps.module("torch.nn.Linear", SIZE, SIZE)
        local = nn.Linear(SIZE, SIZE)
        local.load_state_dict(net.state_dict())
        opt, local_opt = ps.optimizer(optim.SGD, net.parameters(), lr=0.1), optim.SGD(local.parameters(), lr=0.1)
        for factor in (1.0, HUGE, 1.0):
            x = factor * torch.ones(2, SIZE)
            with ps.context() as ctx:
                ctx.backward(ours.scale(net(x).square().sum()))
                if clips:
                    opt.unscale(ctx, ours)
                    ctx.clip_grad_norm(net.parameters(), 1.0)
                assert (opt.step(ctx, scaler=ours) is None) == (factor == HUGE)
                ours.update()
            local_opt.zero_grad()
            theirs.scale(local(x).square().sum()).backward()
            if clips:
                theirs.unscale_(local_opt)
                nn.utils.clip_grad_norm_(local.parameters(), 1.0)
            theirs.step(local_opt)
            theirs.update()
            assert ours.get_scale() == theirs.get_scale()
        for name, value in net.state_dict().items():
            torch.testing.assert_close(value, local.state_dict()[name])


async def test_an_optimizer_goes_with_its_last_reference() -> None:
    async with training("ps0", "ps1") as (_, ps):
        model = Model(ps, "both")
        await model.make()
        async with ps.context() as ctx:
            scale = scaler()
            await ctx.backward(scale.scale(await model.loss(torch.ones(3, 3, SIZE))))
            await model.opt.unscale(ctx, scale)
            await model.opt.step(ctx, scale)
        gone = weakref.ref(model.opt)
        gc.disable()
        try:
            del model, ctx
            async with asyncio.timeout(60):
                while gone() is not None:  # the thread that stepped may hold it for another moment
                    await ps.status()
            assert gone() is None
        finally:
            gc.enable()
