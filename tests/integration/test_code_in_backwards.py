"""Tests that code of hosted modules finds in a backward what it has found in the forward."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import trainer_client as tc
from tests.hosted_models import Hooked, Recomputing, WritingLate

X = torch.arange(12.0).reshape(4, 3) / 12


async def same(ps: tc.Client, cls: type[nn.Module], training: bool) -> None:
    """Several passes have the gradients, and leave the buffers, that local torch computes."""
    local = cls().train(training)
    net = await ps.module(cls)
    await net.load_state_dict(local.state_dict())
    net.train(training)
    for number in range(4):
        async with ps.context() as ctx:
            await ctx.backward((await net.options(seed=number)(X)).square().sum())
            found = {key.ref.parameter: value for key, value in (await ctx.get_gradients()).items()}
        local.zero_grad()
        with torch.random.fork_rng():
            torch.manual_seed(number)
            local(X).square().sum().backward()
        for name, parameter in local.named_parameters():
            assert torch.equal(found[name], parameter.grad), (name, number)
    state = await net.state_dict()
    assert all(torch.equal(state[name], value) for name, value in local.state_dict().items())


@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
async def test_the_mode_of_the_call_is_that_of_its_hooks(ps: tc.Client, training: bool) -> None:
    await same(ps, Hooked, training)


@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
async def test_what_is_computed_again_has_the_mode_and_the_random_numbers_of_the_call(
    ps: tc.Client, training: bool
) -> None:
    await same(ps, Recomputing, training)


async def test_a_hook_that_writes_to_a_parameter_is_refused(ps: tc.Client) -> None:
    net = await ps.module(WritingLate)
    for _ in range(4):
        async with ps.context() as ctx:
            y = await net(X)
            with pytest.raises(tc.errors.InvalidArgumentError, match="has written to a parameter"):
                await ctx.backward(y.sum())
