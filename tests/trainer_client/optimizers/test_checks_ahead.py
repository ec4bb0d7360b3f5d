"""Tests of checks of gradients that go with the backward to several owners, before one of them steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from ps_wire import errors
from ps_wire.errors import NonFiniteGradientError
from ps_wire.v1.frames_pb2 import Frame
from ps_wire.v1.operations_pb2 import BackwardRequest
from tests.trainer_client.optimizers.parts_on_owners import Place, answer_step, optimizer_on, places
from tests.trainer_client.scripted_passes import give_each, new_context, posted, recorded
from trainer_client.contexts.context import Context

NAN_THERE = errors.to_message(NonFiniteGradientError("there is NaN"))


def output_of(context: Context, *places: Place) -> torch.Tensor:
    """The sum of the outputs of one recorded call on each owner, without inputs of this process."""
    found = [recorded(context, place.session)[0] for place in places]
    return torch.stack(found).sum()


async def answer_backward(place: Place, **fields: Any) -> BackwardRequest:
    """Answers the next backward with these fields; gives it."""
    frame: Frame = (await posted(place.stream))[0]
    await give_each(place.stream, frame.number, [], **fields)
    return frame.request.backward


async def begun(both: Sequence[Place], *called: Place) -> Any:
    """A backward over calls of some owners, with a step of an optimizer over both."""
    context = new_context()
    return context.backward(output_of(context, *called), step=optimizer_on(*both, refuses=True))


async def test_the_backward_asks_for_the_checks() -> None:
    async with places() as both:
        pending = await begun(both, *both)
        for place in both:
            request = await answer_backward(place, checked=True)
            assert [each.object_id for each in request.checks] and not request.steps and not request.HasField("end")
        for place in both:
            assert not (await answer_step(place, 1)).request.step.check_only
        assert await pending == {"ps0": 1, "ps1": 1}


async def test_an_owner_that_refuses_keeps_all_from_stepping() -> None:
    async with places() as both:
        pending = await begun(both, *both)
        await answer_backward(both[0], checked=True)
        await answer_backward(both[1], step_error=NAN_THERE)
        with pytest.raises(NonFiniteGradientError, match="there is NaN") as raised:
            await pending
        assert any("The backward has succeeded" in note for note in raised.value.__notes__)
        for place in both:
            await place.stream.nothing_more()


async def test_owners_that_have_not_checked_are_asked_by_themselves() -> None:
    """One is of an earlier version, or has called other owners."""
    async with places() as both:
        pending = await begun(both, *both)
        await answer_backward(both[0], checked=True)
        await answer_backward(both[1])
        for place in both:
            assert (await answer_step(place, 0)).request.step.check_only
        for place in both:
            assert not (await answer_step(place, 1)).request.step.check_only
        assert await pending == {"ps0": 1, "ps1": 1}


async def test_an_owner_without_a_backward_is_asked_by_itself() -> None:
    async with places() as both:
        pending = await begun(both, both[0])
        assert not (await answer_backward(both[0])).checks
        for place in both:
            assert (await answer_step(place, 0)).request.step.check_only
        for place in both:
            assert not (await answer_step(place, 1)).request.step.check_only
        assert await pending == {"ps0": 1, "ps1": 1}


async def test_an_optimizer_that_applies_nan_asks_for_no_checks() -> None:
    async with places() as both:
        context = new_context()
        pending = context.backward(output_of(context, *both), step=optimizer_on(*both))
        for place in both:
            assert not (await answer_backward(place)).checks
        for place in both:
            assert not (await answer_step(place, 1)).request.step.check_only
        assert await pending == {"ps0": 1, "ps1": 1}
