"""Tests that sums of gradients have the same bits in every run, and those of local torch."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest
import torch
from torch import nn

import trainer_client as tc
from tests.conftest import StartProcess
from tests.custom_functions import NoGradient
from tests.graph_models import product
from tests.training import identical, training, twin

SIZE, BATCH = 8, 5
CALLS, TRIALS = 6, 6


def inputs(count: int = CALLS) -> list[torch.Tensor]:
    # Of very different sizes, so that almost every other order of a sum gives other bits.
    return [torch.randn(BATCH, SIZE) * 10.0 ** random.randint(-3, 3) for _ in range(count)]


async def gradient_of(ctx: tc.Context, handle: tc.RemoteModule) -> list[torch.Tensor]:
    found = await ctx.get_gradients()
    return [found[parameter] for parameter in handle.parameters()]


@pytest.mark.parametrize("owners", [1, 2])
async def test_a_pass_of_several_calls_has_the_bits_of_a_local_one(owners: int) -> None:
    async with training(*(f"ps{number}" for number in range(owners))) as (_, ps):
        nets = [await ps.module("torch.nn.Linear", SIZE, SIZE, owner=owner) for owner in ps.owners]
        locals_ = [await twin(net, nn.Linear(SIZE, SIZE)) for net in nets]
        xs = inputs()
        factors = [float(2**number) for number in range(CALLS)]

        def losses(outputs: list[torch.Tensor]) -> torch.Tensor:
            return torch.stack([y.square().sum() * factor for y, factor in zip(outputs, factors, strict=True)]).sum()

        losses(through(locals_, xs)).backward()
        for _ in range(TRIALS):
            async with ps.context() as ctx:
                outputs = xs
                for net in nets:
                    outputs = await asyncio.gather(*(net(x) for x in outputs))
                await ctx.backward(losses(outputs))
                for net, local in zip(nets, locals_, strict=True):
                    wanted = [parameter.grad for parameter in local.parameters()]
                    assert identical(await gradient_of(ctx, net), wanted)


def through(modules: list[nn.Module], xs: list[torch.Tensor]) -> list[torch.Tensor]:
    for module in modules:
        xs = [module(x) for x in xs]
    return xs


async def test_several_backwards_are_added_one_after_the_other() -> None:
    async with training() as (_, ps):
        net = await ps.module("torch.nn.Linear", SIZE, SIZE)
        local = await twin(net, nn.Linear(SIZE, SIZE))
        here, twin_here = (nn.Linear(SIZE, SIZE) for _ in range(2))
        twin_here.load_state_dict(here.state_dict())
        xs = inputs()
        for x_a, x_b in zip(xs[::2], xs[1::2], strict=True):
            loss = local(twin_here(x_a)).square().sum() + local(twin_here(x_b)).sin().sum()
            loss.backward(retain_graph=True)
            loss.backward()
        wanted = [parameter.grad for parameter in local.parameters()]
        for together in [False, True] * (TRIALS // 2):
            async with ps.context() as ctx:
                losses = []
                for x_a, x_b in zip(xs[::2], xs[1::2], strict=True):
                    y_a, y_b = await asyncio.gather(net(here(x_a)), net(here(x_b)))
                    losses.append(y_a.square().sum() + y_b.sin().sum())
                twice = [(loss, retain) for loss in losses for retain in (True, False)]
                if together:
                    await asyncio.gather(*(ctx.backward(loss, retain_graph=retain) for loss, retain in twice))
                else:
                    for loss, retain in twice:
                        await ctx.backward(loss, retain_graph=retain)
                assert identical(await gradient_of(ctx, net), wanted)
                found = [ctx.gradient(parameter) for parameter in here.parameters()]
                assert identical(found, [parameter.grad for parameter in twin_here.parameters()])


@pytest.mark.parametrize("at_once", [False, True], ids=["opt.step", "step="])
async def test_accumulated_gradients_step_as_in_local_torch(at_once: bool) -> None:
    async with training() as (_, ps):
        net = await ps.module("torch.nn.Linear", SIZE, SIZE)
        local = await twin(net, nn.Linear(SIZE, SIZE))
        here, twin_here = (nn.Linear(SIZE, SIZE) for _ in range(2))
        twin_here.load_state_dict(here.state_dict())
        opt = await ps.optimizer(torch.optim.Adam, [*net.parameters(), *here.parameters()], lr=0.1)
        local_opt = torch.optim.Adam([*local.parameters(), *twin_here.parameters()], lr=0.1)
        for _ in range(3):
            xs = inputs()
            for x in xs:
                (local(twin_here(x)).square().mean() / len(xs)).backward()
            local_opt.step()
            local_opt.zero_grad()
            async with ps.context() as ctx:
                for x in xs:
                    loss = (await net(here(x))).square().mean() / len(xs)
                    await ctx.backward(loss, step=opt if at_once and x is xs[-1] else None)
                if not at_once:
                    await opt.step(ctx)
        assert identical(list((await net.state_dict()).values()), list(local.parameters()))
        assert identical(list(here.parameters()), list(twin_here.parameters()))


async def test_a_tensor_used_by_several_calls_gets_its_gradients_in_order() -> None:
    """A tensor of this process, and a result that stayed on the owner, as inputs of several calls."""
    async with training() as (_, ps):
        net = await ps.module("torch.nn.Linear", SIZE, SIZE)
        local = await twin(net, nn.Linear(SIZE, SIZE))
        factors = inputs()
        x = torch.randn(BATCH, SIZE, requires_grad=True)
        sum((local(x) * factor).sum() for factor in factors).backward()
        wanted, x.grad = x.grad, None
        local.zero_grad()
        kept_wanted = local(x)
        sum((torch.mul(kept_wanted, factor)).sum() for factor in factors).backward()
        kept_wanted = [parameter.grad for parameter in local.parameters()]
        x.grad = None
        for _ in range(TRIALS):
            async with ps.context() as ctx:
                outputs = await asyncio.gather(*(net(x) for _ in factors))
                await ctx.backward(sum((y * factor).sum() for y, factor in zip(outputs, factors, strict=True)))
                assert identical(ctx.gradient(x), wanted)
            async with ps.context() as ctx:
                kept = await net.remote("forward", x)
                products = await asyncio.gather(*(ps.call(product, kept, factor) for factor in factors))
                await ctx.backward(sum(product.sum() for product in products))
                assert identical(await gradient_of(ctx, net), kept_wanted)


@pytest.mark.parametrize("sparse", [False, True])
async def test_calls_without_a_gradient_are_passed_over(sparse: bool) -> None:
    """A backward that reaches calls of which no gradient comes, and gradients of an embedding."""
    async with training() as (_, ps):
        table = await ps.module("torch.nn.Embedding", 6, SIZE, sparse=sparse)
        local = await twin(table, nn.Embedding(6, SIZE, sparse=sparse))
        indices = [torch.randint(0, 6, (BATCH,)) for _ in range(CALLS)]
        factors = inputs()

        def loss(rows: list[torch.Tensor]) -> torch.Tensor:
            ends: list[Callable[[torch.Tensor], torch.Tensor]] = [lambda y: y, NoGradient.apply]
            parts = zip(rows, factors, strict=True)
            return torch.stack([(ends[n in (2, 4)](y) * factor).sum() for n, (y, factor) in enumerate(parts)]).sum()

        loss([local(ids) for ids in indices]).backward()
        for _ in range(TRIALS):
            async with ps.context() as ctx:
                rows = await asyncio.gather(*(table(ids) for ids in indices))
                await ctx.backward(loss(list(rows)))
                (found,) = await gradient_of(ctx, table)
                wanted = local.weight.grad
                assert wanted is not None and found.is_sparse == wanted.is_sparse == sparse
                assert identical(*(each.coalesce().values() if sparse else each for each in (found, wanted)))


async def test_calls_that_hosted_code_makes_stand_in_the_order_of_those_around_them(
    start_process: StartProcess,
) -> None:
    first = await start_process("--name", "ps0", "--directory", "self")
    second = await start_process("--name", "ps1", "--directory", first.address)
    async with tc.connect(first.address, second.address) as ps:
        inner = await ps.module("torch.nn.Linear", SIZE, SIZE, owner="ps1")
        outer = await ps.module("tests.hosted_models.Delegating", owner="ps0")
        local = await twin(inner, nn.Linear(SIZE, SIZE))
        scale = torch.tensor(2.0, requires_grad=True)
        xs, factors = inputs(), inputs()
        outputs = [local(x) if number % 3 == 1 else scale * (x + local(x)) for number, x in enumerate(xs)]
        sum((y * factor).sum() for y, factor in zip(outputs, factors, strict=True)).backward()
        wanted = [parameter.grad for parameter in local.parameters()]
        for _ in range(TRIALS):
            async with ps.context() as ctx:
                calls = [inner(x) if number % 3 == 1 else outer(x, inner) for number, x in enumerate(xs)]
                outputs = await asyncio.gather(*calls)
                await ctx.backward(sum((y * factor).sum() for y, factor in zip(outputs, factors, strict=True)))
                assert identical(await gradient_of(ctx, inner), wanted)
                assert identical(await gradient_of(ctx, outer), [scale.grad])
