"""Tests that gradients are clipped by one norm over owners and local parameters, as with torch."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from ps_wire.errors import InvalidArgumentError, UnknownNameError
from ps_wire.refs import Ref, new_object_id
from ps_wire.v1.frames_pb2 import Request
from tests.trainer_client.scripted_owner import Stream, opened
from tests.trainer_client.scripted_passes import new_context
from trainer_client.contexts.context import Context
from trainer_client.handles.parameters import RemoteParameter
from trainer_client.session.session import Session


async def context_with(*gradients: list[float]) -> tuple[Context, list[torch.Tensor]]:
    """A context in which local parameters have these gradients."""
    context = new_context()
    parameters = [torch.zeros(len(each), requires_grad=True) for each in gradients]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        await context.backward(parameter, torch.tensor(gradient))
    return context, parameters


def remote(session: Session, name: str) -> RemoteParameter:
    return RemoteParameter.bare(session, Ref(session.owner, new_object_id(), name), torch.zeros(1))


async def tell(stream: Stream, power_sum: float) -> Request:
    """Answers a question for the norm; gives the question."""
    frame = await stream.request()
    assert frame.request.HasField("norm"), frame
    await stream.answer(frame.number, norm={"power_sum": power_sum})
    return frame.request


async def scaled_by(stream: Stream) -> float:
    """Answers a request to scale; gives the factor."""
    frame = await stream.request()
    assert frame.request.HasField("scale"), frame
    await stream.answer(frame.number, scale={})
    return frame.request.scale.factor


@pytest.mark.parametrize("norm_type", [1.0, 2.0, 3.0, math.inf])
@pytest.mark.parametrize("max_norm", [0.5, 1000.0])
async def test_local_gradients_are_clipped_as_torch_does(max_norm: float, norm_type: float) -> None:
    gradients = [[3.0, -4.0], [12.0]]
    context, parameters = await context_with(*gradients)
    expected = [torch.zeros(len(each), requires_grad=True) for each in gradients]
    for parameter, gradient in zip(expected, gradients, strict=True):
        parameter.grad = torch.tensor(gradient)
    norm = torch.nn.utils.clip_grad_norm_(expected, max_norm, norm_type)
    torch.testing.assert_close(await context.clip_grad_norm(parameters, max_norm, norm_type), norm)
    torch.testing.assert_close([context.gradient(each) for each in parameters], [each.grad for each in expected])


async def test_a_single_tensor_is_clipped_as_torch_does() -> None:
    context, (parameter,) = await context_with([3.0, -4.0])
    assert float(await context.clip_grad_norm(parameter, 1.0)) == 5.0
    torch.testing.assert_close(context.gradient(parameter), torch.tensor([0.6, -0.8]))


async def test_a_single_handle_is_clipped() -> None:
    async with opened() as (session, stream, _):
        clipping = new_context().clip_grad_norm(remote(session, "a"), max_norm=1.0)
        asked = await tell(stream, 9.0)
        assert [each.parameter for each in asked.norm.parameters] == ["a"]
        assert await scaled_by(stream) == pytest.approx(1 / 3, rel=1e-5)
        assert float(await clipping) == 3.0


async def test_the_norm_is_one_over_all_owners_and_this_process() -> None:
    async with opened() as (first, stream, _), opened(owner="ps1") as (second, other_stream, _):
        context, (local,) = await context_with([2.0])
        members: list[Any] = [remote(first, "a"), remote(second, "b"), local, remote(first, "c")]
        clipping = context.clip_grad_norm(members, max_norm=1.0)
        asked = [await tell(stream, 9.0), await tell(other_stream, 36.0)]
        assert [[each.parameter for each in request.norm.parameters] for request in asked] == [["a", "c"], ["b"]]
        assert {request.norm.norm_type for request in asked} == {2.0}
        assert await scaled_by(stream) == await scaled_by(other_stream) == pytest.approx(1 / 7, rel=1e-5)
        assert float(await clipping) == 7.0
        gradient = context.gradient(local)
        assert gradient is not None and float(gradient) == pytest.approx(2 / 7, rel=1e-5)


async def test_owners_do_not_scale_gradients_within_the_norm() -> None:
    async with opened() as (session, stream, _):
        clipping = new_context().clip_grad_norm([remote(session, "a")], max_norm=3.1)
        await tell(stream, 9.0)
        assert float(await clipping) == 3.0
        await stream.nothing_more()


async def test_the_largest_norm_counts_when_it_is_infinite() -> None:
    async with opened() as (session, stream, _):
        context, (local,) = await context_with([2.0])
        clipping = context.clip_grad_norm([remote(session, "a"), local], 1.0, math.inf)
        await tell(stream, 4.0)
        assert await scaled_by(stream) == pytest.approx(0.25, rel=1e-5)
        assert float(await clipping) == 4.0


async def test_a_norm_that_is_not_a_number_is_seen_in_the_gradients() -> None:
    async with opened() as (session, stream, _):
        context, (local,) = await context_with([2.0])
        clipping = context.clip_grad_norm([remote(session, "a"), local], 1.0)
        await tell(stream, math.nan)
        assert math.isnan(await scaled_by(stream))
        assert math.isnan(float(await clipping))
        gradient = context.gradient(local)
        assert gradient is not None and math.isnan(float(gradient))


async def test_a_norm_too_large_for_a_float_is_infinite() -> None:
    context, (local,) = await context_with([1e38])
    assert float(await context.clip_grad_norm([local], 1.0, norm_type=20.0)) == math.inf


async def test_parameters_without_gradients_have_norm_zero() -> None:
    context = new_context()
    assert float(await context.clip_grad_norm([torch.zeros(2, requires_grad=True)], 1.0)) == 0.0
    assert float(await context.clip_grad_norm([], 1.0, math.inf)) == 0.0


@pytest.mark.parametrize(("max_norm", "norm_type"), [(0.0, 2.0), (-1.0, 2.0), (1.0, 0.0), (math.nan, 2.0)])
async def test_norms_must_be_positive(max_norm: float, norm_type: float) -> None:
    with pytest.raises(InvalidArgumentError, match="must be positive"):
        new_context().clip_grad_norm([], max_norm, norm_type)


async def test_an_error_of_an_owner_is_raised_and_nothing_is_scaled() -> None:
    async with opened() as (session, stream, _):
        context, (local,) = await context_with([2.0])
        clipping = context.clip_grad_norm([remote(session, "a"), local], 1.0)
        await stream.refuse((await stream.request()).number, UnknownNameError("no such parameter"))
        with pytest.raises(UnknownNameError):
            await clipping
        gradient = context.gradient(local)
        assert gradient is not None and gradient.tolist() == [2.0]
