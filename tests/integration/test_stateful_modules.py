"""Hosted modules that keep what one call has computed for the next one train as they do locally, or are refused."""

from __future__ import annotations

import pytest
import torch

import trainer_client as tc
from ps_service.server import Server
from tests.integration.odd_training import train_both, training
from tests.stateful_modules import SIZE, WAYS, Recurrent
from tests.training import pins, twin

MODELS = "tests.stateful_modules"
BARE = [way for way in WAYS if "copied" not in way]  # torch itself refuses to write to what the cell has saved
USES = ["detach", "detach_", "data", "no_grad", "clone"]
REFUSED = r"forward of an anonymous .*Recurrent has computed with .* earlier call .*detach\(\)"
X = torch.arange(3.0 * SIZE).reshape(3, SIZE) / 10


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("way", "use"), [*((way, "detach") for way in WAYS), *(("attribute", use) for use in USES[1:]), ("list", "detach_")]
)
async def test_a_state_without_its_history_is_that_of_the_last_call(
    unusual: tuple[Server, tc.Client], way: str, use: str
) -> None:
    server, ps = unusual
    net = await ps.module(f"{MODELS}.Recurrent", way, use)
    local = await twin(net, Recurrent(way, use))
    await train_both(ps, net, local, passes=4)
    assert torch.equal(await net.state(), local.state())
    assert pins(server) == 0


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("way", BARE)
async def test_a_state_with_its_history_is_refused_in_every_later_call(
    unusual: tuple[Server, tc.Client], way: str
) -> None:
    server, ps = unusual
    net = await ps.module(f"{MODELS}.Recurrent", way, "bare")
    async with ps.context() as ctx:
        await ctx.backward((await net(X)).sum())
        for _ in range(2):
            with pytest.raises(tc.errors.InvalidArgumentError, match=REFUSED):
                await net(X)
    async with ps.context():
        with pytest.raises(tc.errors.InvalidArgumentError, match=REFUSED):
            await net(X)
        with pytest.raises(tc.errors.InvalidArgumentError, match=r"earlier call"):
            await net.state()
        assert await net.has_history(), "as it has locally"
    assert pins(server) == 0


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("way", BARE)
async def test_a_state_with_its_history_is_free_where_nothing_is_recorded(
    unusual: tuple[Server, tc.Client], way: str
) -> None:
    _, ps = unusual
    net = await ps.module(f"{MODELS}.Recurrent", way, "bare")
    local = await twin(net, Recurrent(way, "bare"))
    async with ps.context():
        await net(X)
    local(X)
    with torch.no_grad():
        assert torch.equal(await net.state(), local.state())
        assert torch.equal(await net(X), local(X))
        assert torch.equal(await net(X), local(X))


async def test_an_open_pass_keeps_its_numbers_when_a_later_call_writes_to_the_state() -> None:
    async with training() as (_, ps):
        net = await ps.module(f"{MODELS}.Recurrent")
        local = await twin(net, Recurrent())
        async with ps.context() as ctx:
            first = await net(X)
            kept = first.detach().clone()
            second = await net(X)
            await ctx.backward(first.sum() + second.square().sum())
            (local(X).sum() + local(X).square().sum()).backward()
            for name, gradient in (await ctx.get_gradients()).items():
                torch.testing.assert_close(gradient, local.get_parameter(name.ref.parameter).grad)
        assert torch.equal(first, kept)


@pytest.mark.parametrize("way", ["global", "class attribute"])
async def test_a_state_outside_of_the_module_has_its_history_as_it_has_locally(way: str) -> None:
    async with training() as (_, ps):
        net = await ps.module(f"{MODELS}.Leaving", way)
        async with ps.context() as ctx:
            await ctx.backward((await net(X)).sum())
            loss = (await net(X)).sum()
            with pytest.raises(tc.errors.RemoteError, match="backward through the graph a second time"):
                await ctx.backward(loss)


async def test_a_module_that_a_function_calls_is_refused_in_the_backward() -> None:
    async with training() as (_, ps):
        net = await ps.module(f"{MODELS}.Recurrent", "attribute", "bare")
        async with ps.context() as ctx:
            await ctx.backward((await ps.call(f"{MODELS}.through", net, X)).sum())
            loss = (await ps.call(f"{MODELS}.through", net, X)).sum()
            with pytest.raises(tc.errors.InvalidArgumentError, match=r"earlier call .*detach\(\)"):
                await ctx.backward(loss)


async def test_an_object_whose_state_leads_to_inputs_of_an_earlier_call_is_refused_in_the_backward() -> None:
    async with training() as (_, ps):
        summing = await ps.create(f"{MODELS}.Summing")
        first, second = X.clone().requires_grad_(), X.clone().requires_grad_()
        async with ps.context() as ctx:
            await ctx.backward((await summing.add(first, True)).sum())
            await ctx.backward((await summing.add(second, True)).sum())
            loss = (await summing.add(second, False)).sum()
            with pytest.raises(tc.errors.InvalidArgumentError, match=r"earlier call .*detach\(\)"):
                await ctx.backward(loss)
