"""Tests of the random numbers that code of hosted modules draws in a backward."""

from __future__ import annotations

import pytest
import torch

import trainer_client as tc
from tests.training import identical, training


async def gradients(ps: tc.Client, net: tc.RemoteModule, calls: int) -> list[torch.Tensor]:
    """Those of the inputs of passes one after another."""
    found = []
    for _ in range(calls):
        x = torch.ones(4, 3, requires_grad=True)
        async with ps.context() as ctx:
            await ctx.backward((await net(x)).sum())
            gradient = ctx.gradient(x)
            assert gradient is not None
            found.append(gradient)
    return found


async def test_noise_of_a_seeded_backward_differs_between_calls_and_is_that_of_the_calls_seed() -> None:
    async with training() as (_, ps):
        net = await ps.module("tests.hosted_models.Noisy")
        ps.manual_seed(7)
        first = await gradients(ps, net, 6)
        assert len({each.numpy().tobytes() for each in first}) == len(first), "two calls drew the same noise"
        ps.manual_seed(7)
        assert identical(await gradients(ps, net, 6), first)


@pytest.mark.parametrize("on_view", [False, True], ids=["on the module", "on a view"])
@pytest.mark.parametrize("seed", [None, 7])
async def test_a_recomputation_draws_the_mask_of_its_forward_while_others_draw(seed: int | None, on_view: bool) -> None:
    async with training() as (_, ps):
        net = await ps.module("tests.hosted_models.Dropping")
        ps.manual_seed(seed)
        masks = set()
        for again in (*([False] * 3 if on_view else []), True, True, True):
            x = torch.ones(4, 32, requires_grad=True)
            async with ps.context() as ctx:
                y = await net(x, again)
                await ctx.backward(y.sum())
                gradient = ctx.gradient(x)
                assert gradient is not None and torch.equal(y, gradient)
            masks.add(y.detach().numpy().tobytes())
        assert len(masks) == (6 if on_view else 3), "two calls drew the same mask"
