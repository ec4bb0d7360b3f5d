"""Hosted modules that reach the memory of their parameters under other names are refused, because steps may move it."""

from __future__ import annotations

import pytest
import torch

import trainer_client as tc
from tests.integration.odd_training import MODELS, beside_local, training
from tests.odd_modules import SIZE


@pytest.mark.parametrize(
    ("early", "reason"),
    [
        ("tied", "parameters 'layer.weight' and 'other.weight' .* the same memory"),
        ("row", "parameters .* the same memory"),
        ("buffer", "attribute '_buffers' .* the memory of parameter 'layer.weight'"),
        ("array", "attribute 'kept' .* the memory of parameter 'layer.weight'"),
        ("list", "attribute 'kept' .* the memory of parameter 'layer.weight'"),
    ],
)
async def test_a_constructor_that_keeps_the_memory_of_a_parameter_is_refused(early: str, reason: str) -> None:
    async with training() as (_, ps):
        with pytest.raises(tc.errors.InvalidArgumentError, match=reason):
            await ps.module(f"{MODELS}.Aliasing", early)


@pytest.mark.parametrize("late", ["detached", "view"])
async def test_a_call_that_keeps_the_memory_of_a_parameter_is_refused(late: str) -> None:
    async with training() as (_, ps):
        net = await ps.module(f"{MODELS}.Aliasing", "", late)
        x = torch.ones(2, SIZE)
        for _ in range(2):
            with pytest.raises(
                tc.errors.InvalidArgumentError, match=r"attribute 'noted' .* memory of a parameter.*clone"
            ):
                await net(x)
            async with ps.context():
                with pytest.raises(
                    tc.errors.InvalidArgumentError, match=r"attribute 'noted' .* memory of a parameter.*clone"
                ):
                    await net(x)


@pytest.mark.parametrize("early", ["columns", "copies"])
async def test_parameters_and_arrays_with_memory_of_their_own_train(early: str) -> None:
    await beside_local("Aliasing", (early,))


async def test_an_attribute_that_torch_sets_before_each_forward_is_no_alias() -> None:
    async with training() as (_, ps):
        net = await ps.module(f"{MODELS}.Aliasing", "norm")
        async with ps.context() as ctx:
            await ctx.backward((await net(torch.ones(2, SIZE))).sum())
            assert len(await ctx.get_gradients()) == 4
