"""Tests that modules whose calls move their layers and parameters to other attributes train as they do locally."""

from __future__ import annotations

import asyncio

import pytest
import torch

import trainer_client as tc
from ps_service.server import Server
from tests.integration.odd_training import train_both, training
from tests.restructuring_modules import SIZE, WAYS, Restructuring
from tests.training import apart, pins, same_gradients, twin

MODELS = "tests.restructuring_modules"
X = torch.arange(2.0 * SIZE).reshape(2, SIZE) / 10


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(("way", "hooked"), [*((way, True) for way in WAYS), ("turns", False), ("list", False)])
async def test_each_call_finds_the_state_of_the_last_one(
    unusual: tuple[Server, tc.Client], way: str, hooked: bool
) -> None:
    server, ps = unusual
    net = await ps.module(f"{MODELS}.Restructuring", way, hooked)
    local = await twin(net, Restructuring(way, hooked))
    await train_both(ps, net, local, passes=5)
    assert await net.seen() == local.seen()
    assert pins(server) == 0


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("way", WAYS)
async def test_a_restructuring_module_equals_a_local_one_in_both_modes(
    unusual: tuple[Server, tc.Client], way: str
) -> None:
    _, ps = unusual
    net = await ps.module(f"{MODELS}.Restructuring", way)
    local = await twin(net, Restructuring(way))
    for mode in (True, False, False, True, False):
        net.train(mode)
        local.train(mode)
        torch.testing.assert_close(await net(X), local(X).detach())
    await train_both(ps, net, local)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("way", WAYS)
async def test_passes_that_are_open_at_once_have_gradients_of_their_own(
    unusual: tuple[Server, tc.Client], way: str
) -> None:
    _, ps = unusual
    net = await ps.module(f"{MODELS}.Restructuring", way)
    local, other = await twin(net, Restructuring(way)), await twin(net, Restructuring(way))
    async with ps.context() as ctx:
        loss = (await net(X)).sum()
        local(X).sum().backward()
        with torch.no_grad():
            other(X)
        other(X).mul(10).sum().backward()

        async def second() -> None:
            async with ps.context() as inner:
                await inner.backward((await net(X)).mul(10).sum())
                await same_gradients(inner, [(net, other)])

        await apart(second())
        await ctx.backward(loss)
        await same_gradients(ctx, [(net, local)])


async def test_concurrent_calls_lose_no_counts() -> None:
    async with training() as (_, ps):
        net = await ps.module(f"{MODELS}.Restructuring", "counting")
        await asyncio.gather(*(net(X) for _ in range(40)))
        assert (await net.seen())[-1] == 40
