"""Tests the requests of calls, the handles among their arguments, and their results."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ps_wire.errors import NotAllowedError
from ps_wire.refs import Ref, new_object_id
from ps_wire.v1.frames_pb2 import Frame
from ps_wire.v1.operations_pb2 import CallRequest
from ps_wire.v1.values_pb2 import Handle
from tests.trainer_client.handles.answering import answer_call, thing
from tests.trainer_client.scripted_owner import Stream, decoded, opened
from tests.trainer_client.scripted_passes import give, new_context, posted
from trainer_client.handles import calls
from trainer_client.handles.references import RRef

NOTHING: dict[str, Any] = {}


def called(frame: Frame) -> CallRequest:
    assert frame.request.HasField("call"), frame
    return frame.request.call


def history(stream: Stream, frame: Frame) -> list[bool]:
    """For each handle among the arguments, whether gradients go back through it."""
    return [item.handle.history for item in called(frame).args.tuple.items if item.HasField("handle")]


# Requests


async def test_a_method_is_called_with_its_arguments() -> None:
    async with opened() as (session, stream, _):
        target = thing(session, "add")
        pending = calls.call(session, target, "add", (torch.tensor([1.0]), 2), {"scale": 0.5})
        frame = await stream.request()
        request = called(frame)
        assert (Ref.from_message(request.target), request.method) == (target.ref, "add")
        assert (request.training, request.keep, request.function) == (True, False, "")
        args = decoded(request.args, stream.payload)
        assert (args[0].tolist(), args[1]) == ([1.0], 2)
        assert decoded(request.kwargs, b"") == {"scale": 0.5}
        assert not request.HasField("context")
        await answer_call(stream, frame, ("sum", 7))
        assert await pending == ("sum", 7)


async def test_a_function_is_called_by_its_name() -> None:
    async with opened() as (session, stream, _):
        pending = calls.call(session, "torch.add", "", (), NOTHING, calls.CallOptions(training=False), keep=True)
        frame = await stream.request()
        request = called(frame)
        assert (request.function, request.HasField("target")) == ("torch.add", False)
        assert (request.training, request.keep) == (False, True)
        assert not request.HasField("args") and not request.HasField("kwargs")
        await answer_call(stream, frame, None)
        assert await pending is None


async def test_calls_of_a_client_with_a_seed_have_seeds_of_their_own() -> None:
    async with opened() as (session, stream, _):
        session.settings.seeding.begin(7)
        for given in (None, None, 5, -1):
            calls.call(session, "f", "", (), NOTHING, calls.CallOptions(seed=given))
        first, second, third, fourth = [called(await stream.request()).numerics.seed for _ in range(4)]
        assert first != second
        assert (third, fourth) == (5, (1 << 64) - 1)


async def test_without_a_seed_calls_have_only_explicit_seeds() -> None:
    async with opened() as (session, stream, _):
        for given in (None, 0):
            calls.call(session, "f", "", (), NOTHING, calls.CallOptions(seed=given))
        assert [called(await stream.request()).numerics.HasField("seed") for _ in range(2)] == [False, True]


async def test_an_error_of_the_owner_is_raised() -> None:
    async with opened() as (session, stream, _):
        pending = calls.call(session, "os.system", "", (), NOTHING)
        await stream.refuse((await stream.request()).number, NotAllowedError("not on the list"))
        with pytest.raises(NotAllowedError, match="not on the list"):
            await pending


# Handles among arguments and results


class Wrapper:
    """Stands for a handle, as the classes of `trainer_client.rpc` do."""

    def __init__(self, rref: RRef) -> None:
        self._rref = rref

    def __ps_handle__(self) -> RRef:
        return self._rref


async def test_handles_travel_as_references() -> None:
    async with opened() as (session, stream, _):
        one, other = thing(session), thing(session)
        calls.call(session, "f", "", (one, [Wrapper(other)]), NOTHING)
        items = called(await stream.request()).args.tuple.items
        assert Ref.from_message(items[0].handle) == one.ref
        assert Ref.from_message(items[1].list.items[0].handle) == other.ref


async def test_handles_are_held_until_the_call_has_run() -> None:
    async with opened() as (session, stream, _):
        argument, target = thing(session), thing(session, "add")
        ids = {argument.ref.object_id, target.ref.object_id}
        pending = calls.call(session, target, "add", (argument,), NOTHING)
        del argument, target
        frame = await stream.request()
        await stream.nothing_more()
        await answer_call(stream, frame, None)
        await pending
        del pending
        released: set[str] = set()
        while released != ids:
            released |= set((await stream.request()).request.release.object_ids)
            assert released <= ids


async def test_a_kept_result_is_a_handle_that_counts() -> None:
    async with opened() as (session, stream, _):
        pending = calls.call(session, "f", "", (), NOTHING, keep=True)
        granted = Handle(owner="ps0", object_id=new_object_id())
        await answer_call(stream, await stream.request(), granted)
        rref = await pending
        assert isinstance(rref, RRef) and rref.ref.object_id == granted.object_id
        del rref, pending
        assert list((await stream.request()).request.release.object_ids) == [granted.object_id]


# Passes


async def test_a_call_in_a_context_is_recorded_and_gradients_come_back() -> None:
    async with opened() as (session, stream, _), new_context() as context:
        x, constant = torch.tensor([1.0, 2.0], requires_grad=True), torch.ones(2)
        pending = calls.call(session, "f", "", (x, constant), NOTHING)
        frame = await stream.request()
        assert (called(frame).context.number, called(frame).call) == (context.id.number, 1)
        await answer_call(stream, frame, {"y": torch.tensor([3.0]).requires_grad_(), "n": torch.tensor([4.0])})
        result = await pending
        assert result["y"].requires_grad and not result["n"].requires_grad
        backward = context.backward((2 * result["y"]).sum())
        sent, gradients = await posted(stream)
        assert (sent.request.backward.call, list(sent.request.backward.outputs)) == (1, [0])
        assert [each.tolist() for each in gradients] == [[2.0]]
        await give(stream, sent.number, torch.tensor([5.0, 6.0]))
        await backward
        gradient = context.gradient(x)
        assert gradient is not None and gradient.tolist() == [5.0, 6.0]


async def test_without_grad_mode_a_call_is_not_recorded() -> None:
    async with opened() as (session, stream, _), new_context():
        with torch.no_grad():
            pending = calls.call(session, "f", "", (torch.ones(1, requires_grad=True),), NOTHING)
        frame = await stream.request()
        assert not called(frame).HasField("context")
        await answer_call(stream, frame, torch.tensor([3.0]))
        assert not (await pending).requires_grad


async def test_a_handle_with_a_history_in_the_pass_says_so() -> None:
    async with opened() as (session, stream, _), new_context() as context:
        traced, plain = thing(session), thing(session)
        traced.mark(context.id, torch.empty(0, requires_grad=True))
        calls.call(session, "f", "", (traced, plain), NOTHING)
        assert history(stream, await stream.request()) == [True, False]


async def test_a_kept_result_of_a_recorded_call_has_a_history() -> None:
    async with opened() as (session, stream, _), new_context() as context:
        pending = calls.call(session, "f", "", (torch.ones(1, requires_grad=True),), NOTHING, keep=True)
        granted = Handle(owner="ps0", object_id=new_object_id(), history=True)
        await answer_call(stream, await stream.request(), granted)
        rref = await pending
        assert rref.token(context.id) is not None
        calls.call(session, "g", "", (rref,), NOTHING)
        assert history(stream, await stream.request()) == [True]
