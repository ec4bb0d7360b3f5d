"""Tests that writes of hosted code to parameters apply to later passes and change no open one."""

from __future__ import annotations

import asyncio

import pytest
import torch

import trainer_client as tc
from ps_service.hosting.views import CLEAN_CALLS
from ps_service.parameters.locks import COPY_AT_MOST
from tests import odd_modules, parameter_modules
from tests.integration.odd_training import MODELS, beside_local, training
from tests.training import apart, hosted_value, pins, same_state, twin

SIZE = odd_modules.SIZE
X = torch.ones(SIZE)


async def written(ps: tc.Client, size: int = SIZE) -> tc.RemoteModule:
    return await ps.module(f"{MODELS}.Written", size)


async def gradient(ps: tc.Client, net: tc.RemoteModule, meanwhile: list[str]) -> float:
    """The gradient of the weight in a pass during which its methods are called."""
    async with ps.context() as ctx:
        loss = (await net(X)).sum()
        for way in meanwhile:
            await apart(_tried(net, way))
        await ctx.backward(loss)
        return float((await ctx.get_gradients())[net.parameter("weight")][0])


async def _tried(net: tc.RemoteModule, way: str) -> None:
    if way == "raises":
        with pytest.raises(tc.errors.RemoteError, match="ZeroDivisionError"):
            await net.change(way)
    else:
        await net.change(way)


@pytest.mark.parametrize("way", ["clamp_", "copy_", "data", "data in place", "numpy", "init", "raises"])
async def test_a_write_applies_to_later_passes_and_not_to_open_ones(way: str) -> None:
    async with training() as (server, ps):
        net = await written(ps)
        assert await gradient(ps, net, [way]) == 6, "2 x w x x of the numbers that the pass began with"
        assert await net.read() == 1
        assert await gradient(ps, net, []) == 2
        # Again, now that the owner knows what the method does.
        await net.load_state_dict({"weight": torch.full((SIZE,), 3.0), "extra": torch.ones(2)})
        assert await gradient(ps, net, [way, "nothing", way]) == 6
        assert await net.read() == 1
        assert pins(server) == 0


@pytest.mark.parametrize("way", ["clamp_", "data in place"])
@pytest.mark.parametrize("calls", [1, CLEAN_CALLS])
async def test_a_method_that_writes_only_now_and_then_is_noticed(way: str, calls: int) -> None:
    async with training() as (_, ps):
        net = await written(ps)
        for _ in range(calls):
            assert await gradient(ps, net, []) == 6
            assert await net.change("nothing") == 3
        if calls == CLEAN_CALLS:
            # Both run on views by now, in the same memory.
            with pytest.raises(tc.errors.RemoteError, match="modified by an inplace operation"):
                await gradient(ps, net, [way])
        else:
            assert await gradient(ps, net, [way]) == 6, "first calls have memory of their own"
        assert await net.read() == 1
        # From now on it is known to write.
        await net.load_state_dict({"weight": torch.full((SIZE,), 3.0), "extra": torch.ones(2)})
        assert await gradient(ps, net, [way]) == 6


async def test_writing_to_a_large_parameter_raises_in_passes_that_need_it() -> None:
    async with training() as (_, ps):
        net = await written(ps, COPY_AT_MOST // 4 + SIZE)
        async with ps.context() as ctx:
            value = await net.change("clamp_")
            assert value == 1 == await net.read()
            loss = (await net(torch.ones(()))).sum()
            await ctx.backward(loss)
        # A pass that has saved it keeps its numbers also then.
        await net.change("nothing")
        async with ps.context() as ctx:
            loss = (await net(torch.ones(()))).sum()
            await apart(_tried(net, "clamp_"))
            await ctx.backward(loss)
            assert float((await ctx.get_gradients())[net.parameter("weight")][0]) == 2


@pytest.mark.parametrize(
    ("way", "message"),
    [
        ("shape", "another shape"),
        ("replaced", "structure"),
        ("deleted", "structure"),
        ("added", "structure"),
        ("module added", "structure"),
        ("backward", r"torch\.autograd\.grad"),
    ],
)
async def test_an_invalid_write_to_a_parameter_raises_and_changes_nothing(way: str, message: str) -> None:
    async with training() as (server, ps):
        net = await written(ps)
        before = await net.state_dict()
        for _ in range(2):
            with pytest.raises(tc.errors.InvalidArgumentError, match=message):
                await net.change(way)
            after = await net.state_dict()
            assert before.keys() == after.keys()
            assert all(torch.equal(before[name], after[name]) for name in before)
            assert await gradient(ps, net, []) == 6
        assert list(dict(hosted_value(server, net).named_modules())) == [""]


@pytest.mark.parametrize("way", ["swapped", "turned round", "passed on", "detached", "swapped with an attribute"])
async def test_parameters_that_change_places_keep_all_numbers(way: str) -> None:
    await beside_local("Exchanging", (way,), models=parameter_modules)
    async with training() as (_, ps):
        net = await ps.module("tests.parameter_modules.Exchanging", way)
        local = await twin(net, parameter_modules.Exchanging(way))
        for _ in range(3):
            torch.testing.assert_close(await net(X), local(X).detach())
            await same_state(net, local)


@pytest.mark.parametrize("way", ["shared", "of an attribute", "of a buffer"])
async def test_parameters_that_would_share_memory_are_refused(way: str) -> None:
    async with training() as (_, ps):
        net = await ps.module("tests.parameter_modules.Exchanging", way)
        before = await net.state_dict()
        for _ in range(2):
            with pytest.raises(tc.errors.InvalidArgumentError, match=r"parameter 'a' .* memory .* clone\(\)"):
                await net(X)
            after = await net.state_dict()
            assert all(torch.equal(before[name], after[name]) for name in before)


async def test_writers_at_once_do_not_undo_each_other() -> None:
    async with training() as (_, ps):
        net = await written(ps)
        opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.0)
        await net.change("clamp_")
        await asyncio.gather(*(_train(ps, net, opt) for _ in range(4)), *(net.change("clamp_") for _ in range(8)))
        assert await net.read() == 1


async def _train(ps: tc.Client, net: tc.RemoteModule, opt: tc.DistributedOptimizer) -> None:
    async with ps.context() as ctx:
        await ctx.backward((await net(X)).sum())
        await opt.step(ctx)


async def test_an_autograd_function_that_keeps_a_parameter_finds_the_numbers_of_its_pass() -> None:
    async with training() as (server, ps):
        net = await ps.module(f"{MODELS}.WithFunction")
        opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=1.0)
        x = torch.ones(SIZE, requires_grad=True)
        async with ps.context() as ctx:
            loss = (await net(x)).sum()
            await apart(_train(ps, net, opt))
            await ctx.backward(loss)
            assert (await ctx.get_gradients())[x].tolist() == [3.0] * SIZE
        assert pins(server) == 0


async def test_rows_that_are_rescaled_when_they_are_looked_up_stay_so() -> None:
    async with training() as (_, ps):
        net = await ps.module(f"{MODELS}.RowWriter")
        opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1)
        local = odd_modules.RowWriter()
        local.load_state_dict(await net.state_dict())
        local_opt = torch.optim.SGD(local.parameters(), lr=0.1)
        for number in range(4):
            rows = torch.tensor([number, 0, 1])
            local_opt.zero_grad()
            async with ps.context() as ctx:
                loss, wanted = (await net(rows)).square().sum(), local(rows).square().sum()
                await ctx.backward(loss)
                wanted.backward()
                await opt.step(ctx)
                local_opt.step()
            torch.testing.assert_close((await net.state_dict())["table.weight"], local.table.weight.detach())
