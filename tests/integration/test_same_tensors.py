"""A tensor that occurs several times in a call is one object on the other side, and its gradient is the sum."""

from __future__ import annotations

import pytest
import torch

import trainer_client as tc
from tests import graph_models
from tests.graph_models import DTYPE, SIZE
from tests.integration.support import COUNTER
from tests.training import training

MODELS = "tests.graph_models"


async def test_a_tensor_that_is_several_arguments_is_one_object_on_the_owner() -> None:
    async with training() as (_, ps):
        t, equal = torch.ones(3), torch.ones(3)
        found = await ps.call(f"{MODELS}.are_same", [t, equal, t], t, equal, x=equal, y=t)
        assert found == [True, False, True, True, False, False, True]


@pytest.mark.parametrize("kept", [False, True])
async def test_a_tensor_that_occurs_several_times_in_a_result_is_one_object_here(ps: tc.Client, kept: bool) -> None:
    counter, t = await ps.create(COUNTER), torch.ones(3)
    values = [t, {"again": t}, torch.ones(3)]
    found = await (await counter.remote("echo", values)).to_here() if kept else await counter.echo(values)
    assert found[0] is found[1]["again"] is not found[2]


async def test_a_tensor_travels_once(ps: tc.Client) -> None:
    counter, large = await ps.create(COUNTER), torch.ones(1 << 17)
    call = counter.echo([large] * 50)
    assert call.nbytes == large.nbytes
    assert len({id(each) for each in await call}) == 1


async def test_the_gradient_is_the_sum() -> None:
    async with training() as (_, ps):
        x, twin = (torch.arange(1.0, 1 + SIZE, dtype=DTYPE, requires_grad=True) for _ in range(2))
        inner, there = 2 * x, 2 * twin
        wanted, again = graph_models.squared([there, there], there)
        (wanted * 3 + again).sum().backward()
        async with ps.context() as ctx:
            found, same_one = await ps.call(f"{MODELS}.squared", [inner, inner], inner)
            assert found is same_one
            await ctx.backward((found * 3 + same_one).sum())
            assert torch.equal((await ctx.get_gradients())[x], twin.grad)


async def test_a_result_that_is_several_arguments_is_one_object_on_the_owner() -> None:
    async with training() as (_, ps):
        counter = await ps.create(COUNTER)
        for recorded in (False, True):
            t = torch.ones(3, requires_grad=recorded)
            async with ps.context():
                pair = counter.echo([t, t])
                assert await ps.call(f"{MODELS}.first_same", pair, pair) == [True] * 4
