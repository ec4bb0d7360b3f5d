"""Tests that a second step of one optimizer in one context is warned of once, and that what is meant is not."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import torch

import trainer_client as tc
from ps_service.server import Server
from tests.training import owners

WARNS = pytest.warns(UserWarning, match="Use one context per step: open `ps.context\\(\\)` inside of the loop")

Step = Callable[[tc.Context, torch.Tensor, Any], Any]


async def separate(ctx: tc.Context, loss: torch.Tensor, opt: Any) -> None:
    await ctx.backward(loss)
    await opt.step(ctx)


async def in_one(ctx: tc.Context, loss: torch.Tensor, opt: Any) -> None:
    await ctx.backward(loss, step=opt, retain_graph=True)


async def unawaited(ctx: tc.Context, loss: torch.Tensor, opt: Any) -> None:
    ctx.backward(loss)
    opt.step(ctx)


class Local(torch.nn.Linear):
    """A module of this process."""


@pytest.fixture
async def two() -> AsyncIterator[tc.Client]:
    async with owners("ps0", "ps1") as servers, tc.connect(*(each.address for each in servers)) as ps:
        yield ps


async def trained(ps: tc.Client, kind: str) -> tuple[Callable[[], Any], Any]:
    """A function that makes a loss, and the optimizer of what it calls."""
    first = await ps.module("torch.nn.Linear", 2, 2, owner="ps0")
    second = await ps.module("torch.nn.Linear", 2, 2, owner="ps1")
    local, table = Local(2, 2), await ps.table("users", dim=2)
    modules: list[Any] = {"one": [first], "several": [first, second], "local": [local], "tables": [first]}[kind]
    parameters: list[Any] = [each for module in modules for each in module.parameters()]

    async def loss() -> torch.Tensor:
        x = await table(torch.tensor([1, 2])) if kind == "tables" else torch.ones(2, 2)
        for module in modules:
            x = module(x) if module is local else await module(x)
        return x.sum()

    opt = await ps.optimizer(torch.optim.SGD, [*parameters, table] if kind == "tables" else parameters, lr=0.1)
    return loss, opt


@pytest.mark.parametrize(
    ("kind", "step"),
    [
        *(("one", step) for step in (separate, in_one, unawaited)),
        *(("several", in_one), ("local", separate), ("tables", unawaited)),
    ],
)
async def test_a_second_step_in_one_context_is_warned_of_once(two: tc.Client, kind: str, step: Step) -> None:
    loss, opt = await trained(two, kind)
    async with two.context() as ctx:
        await step(ctx, await loss(), opt)
        with WARNS as caught:
            await step(ctx, await loss(), opt)
        assert caught[0].filename == __file__
        await step(ctx, await loss(), opt)  # no second warning, which would be an error here
    async with two.context() as ctx:
        await step(ctx, await loss(), opt)


async def test_gradient_accumulation_and_several_optimizers_are_not_warned_of(two: tc.Client) -> None:
    loss, opt = await trained(two, "several")
    other_loss, other = await trained(two, "local")
    async with two.context() as ctx:
        for _ in range(3):
            await ctx.backward(await loss())
        await ctx.backward(await other_loss())
        await opt.step(ctx)
        await other.step(ctx)


async def test_a_step_after_one_that_has_failed_or_was_skipped_is_not_warned_of(two: tc.Client) -> None:
    for kind in ("one", "several", "tables"):
        loss, opt = await trained(two, kind)
        async with two.context() as ctx:
            await ctx.backward(await loss())
            with pytest.raises(tc.errors.InvalidArgumentError):
                await opt.step(ctx, values={"loss": object()})
            await opt.step(ctx)
    loss, opt = await trained(two, "one")
    async with two.context() as ctx:
        scaler = torch.amp.GradScaler("cpu")
        await ctx.backward(scaler.scale(await loss() * torch.inf))
        assert await opt.step(ctx, scaler) is None
        scaler.update()
        await opt.step(ctx)


@pytest.mark.parametrize("in_one", [False, True])
async def test_the_blocking_client_warns_alike(owner: Server, in_one: bool) -> None:
    def train() -> list[warnings.WarningMessage]:
        with tc.connect(owner.address) as ps, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            net = ps.module("torch.nn.Linear", 2, 2)
            opt = ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1)
            for steps in (1, 3):
                with ps.context() as ctx:
                    for _ in range(steps):
                        loss = net(torch.ones(1, 2)).sum()
                        ctx.backward(loss, step=opt if in_one else None, retain_graph=in_one)
                        if not in_one:
                            opt.step(ctx)
            return caught

    (warning,) = await asyncio.to_thread(train)
    assert "a second step of the same optimizer in one context" in str(warning.message)
    assert warning.filename == __file__


async def test_a_second_push_in_one_context_is_warned_of(ps: tc.Client) -> None:
    replica = await (await ps.module("torch.nn.Linear", 2, 2, name="net")).replica()
    table = await ps.table("users", dim=2)
    opt = await ps.optimizer(torch.optim.SGD, [*replica.sources[0].parameters(), table], lr=0.1)
    async with ps.context() as ctx:
        for number in range(2):
            await ctx.backward(replica(await table(torch.tensor([1]))).sum())
            if number:
                with WARNS:
                    await replica.push(opt, context=ctx)
            else:
                await replica.push(opt, context=ctx)
