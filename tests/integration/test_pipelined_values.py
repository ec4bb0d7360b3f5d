"""Tests that a call gets the value that an earlier call had as its result, and that values are freed."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

import pytest
import torch
from torch import nn

import trainer_client as tc
from ps_service.server import Server
from ps_wire.errors import CancelledCallError, InvalidArgumentError
from ps_wire.limits import Limits
from tests.conftest import StartOwner
from tests.graph_models import DoublesFirst
from tests.integration.support import COUNTER, until
from tests.training import same, same_gradients, training, twin

ASSORTED = "tests.hosted_models.Assorted"


@pytest.mark.parametrize("recorded", [False, True])
async def test_values_have_the_types_that_they_have_when_they_are_sent(ps: tc.Client, recorded: bool) -> None:
    assorted = await ps.create(ASSORTED)
    async with ps.context() if recorded else AsyncExitStack():
        sent = await assorted.describe(await assorted.give())
        assert await assorted.describe(assorted.give()) == sent
        result = assorted.give()
        assert await assorted.describe(result) == await assorted.describe(await result) == sent


async def test_what_cannot_be_sent_is_refused(ps: tc.Client) -> None:
    assorted = await ps.create(ASSORTED)
    with pytest.raises(InvalidArgumentError, match="complex64"):
        await assorted.describe(assorted.give_complex())


async def test_a_result_does_not_change_with_the_object_that_gave_it(ps: tc.Client) -> None:
    assorted = await ps.create(ASSORTED)
    result = assorted.give()
    before = await assorted.describe(result)
    await assorted.write()
    assert await assorted.describe(result) == before


async def test_a_value_that_was_changed_here_is_passed_on_as_it_is(ps: tc.Client) -> None:
    counter = await ps.create(COUNTER)
    result = counter.echo(torch.ones(3))
    assert torch.equal(await counter.echo(result), torch.ones(3))
    (await result).mul_(2)
    assert torch.equal(await counter.echo(result), torch.full((3,), 2.0))


async def test_results_that_are_none_are_freed(ps: tc.Client, owner: Server) -> None:
    counter = await ps.create(COUNTER)
    results: list[Any] = [counter.echo(None) for _ in range(3)]
    assert await counter.echo(results) == [None] * 3
    results.clear()
    await until(ps, lambda _: len(owner.engine.registry) == 1)


@pytest.mark.parametrize("pipelined", [False, True])
async def test_a_result_that_is_two_arguments_is_one_tensor_as_locally(pipelined: bool) -> None:
    async with training() as (_, ps):
        layer = await ps.module("torch.nn.Linear", 3, 3)
        doubles = await ps.module("tests.graph_models.DoublesFirst")
        x = torch.arange(6.0).reshape(2, 3)
        here = await twin(layer, nn.Linear(3, 3))
        for pair in (False, True):
            async with ps.context() as ctx:
                inner: Any = layer(x) if pipelined else await layer(x)
                out = await (doubles.pair([inner, inner]) if pair else doubles(inner, inner))
                await ctx.backward(out.sum())
                there = here(x)
                wanted = DoublesFirst()(there, there)
                here.zero_grad()
                wanted.sum().backward()
                same(out, wanted, "result")
                await same_gradients(ctx, [(layer, here)])


async def test_calls_that_are_cancelled_before_they_are_sent_take_no_room(start_owner: StartOwner) -> None:
    owner = await start_owner(limits=Limits(max_in_flight=4))
    async with tc.connect(owner.address) as ps:
        counter = await ps.create(COUNTER)
        for number in range(8):
            inner = counter.echo(torch.ones(2))
            outer = counter.echo(counter.echo(inner))
            inner.cancel()
            with pytest.raises(CancelledCallError):
                await outer
            assert await counter.echo(number) == number
        await until(ps, lambda status: len(owner.engine.registry) == 1 and status.requests_in_flight == 0)
