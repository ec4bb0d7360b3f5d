"""Tests that a handle keeps its object alive, and that its value can be fetched."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch

from ps_wire.errors import StaleHandleError
from ps_wire.refs import Ref, new_object_id
from ps_wire.v1.frames_pb2 import Reply
from tests.trainer_client.handles.answering import thing
from tests.trainer_client.scripted_owner import Stream, encoded, opened, reconnected
from tests.trainer_client.scripted_passes import give, new_context, posted
from tests.waiting import until
from trainer_client.handles.references import Reference, RRef, received
from trainer_client.session.session import Session


def new_rref(session: Session, parameter: str = "") -> RRef:
    object_id = new_object_id()
    return RRef(session, Ref("ps0", object_id, parameter), Reference(session, object_id))


async def answer_fetch(stream: Stream, value: Any) -> Any:
    """Answers the next fetch; gives its message."""
    frame = await stream.request()
    reply = Reply()
    payload = encoded(reply.fetch.value, value)
    await stream.answer(frame.number, payload, fetch=reply.fetch)
    return frame.request.fetch


# The count on the owner


async def test_a_count_is_given_back_when_the_last_handle_is_gone() -> None:
    async with opened() as (session, stream, _):
        rref = new_rref(session)
        object_id = rref.ref.object_id
        other = RRef(session, rref.ref, rref._reference)
        del rref
        await stream.nothing_more()
        del other
        assert list((await stream.request()).request.release.object_ids) == [object_id]


async def test_a_handle_without_a_reference_gives_nothing_back() -> None:
    async with opened() as (session, stream, _):
        rref = RRef(session, Ref("ps0", new_object_id()), None)
        assert rref.session is session
        del rref
        await stream.nothing_more()


async def test_a_reference_counts_until_its_session_is_lost_or_closed() -> None:
    async with opened(settings={"reconnect_timeout": 20.0}) as (session, stream, owner):
        reference = Reference(session, new_object_id())
        assert reference.counts
        stream = await reconnected(stream, owner, resumed=True)
        assert reference.counts
        await reconnected(stream, owner, resumed=False)
        assert not reference.counts
        later = Reference(session, new_object_id())
        assert later.counts
    assert not later.counts


async def test_a_handle_from_before_a_restart_is_stale() -> None:
    async with opened() as (session, stream, owner):
        rref = new_rref(session)
        await reconnected(stream, owner, resumed=False, incarnation="second")
        with pytest.raises(StaleHandleError, match="owner 'ps0' has restarted since"):
            _ = rref.session
        with pytest.raises(StaleHandleError):
            rref.to_here()
        assert new_rref(session).session is session


async def test_a_handle_of_an_answer_from_before_a_restart_is_stale_however_late_it_is_read() -> None:
    async with opened() as (session, stream, owner):
        object_id = new_object_id()
        pending = new_rref(session).to_here()
        frame = await stream.request()
        reply = Reply(granted=[object_id])
        payload = encoded(reply.fetch.value, Ref("ps0", object_id))
        await stream.answer(frame.number, payload, fetch=reply.fetch, granted=reply.granted)
        await until(pending.done)
        stream = await reconnected(stream, owner, resumed=False, incarnation="second")
        await until(lambda: session.losses)
        late = await pending
        with pytest.raises(StaleHandleError, match="owner 'ps0' has restarted since"):
            _ = late.session
        assert not late._reference.counts
        del late, pending
        await stream.nothing_more()
        assert new_rref(session).session is session


async def test_a_restart_from_the_same_state_leaves_handles_valid() -> None:
    async with opened() as (session, stream, owner):
        rref = new_rref(session)
        await reconnected(stream, owner, resumed=True)
        assert rref.session is session


# What a handle says


async def test_handles_of_the_same_are_equal_whatever_their_class() -> None:
    async with opened() as (session, _, _):
        one = thing(session)
        other, parameter = RRef(session, one.ref, None), RRef(session, one.ref._replace(parameter="w"), None)
        assert one == other and hash(one) == hash(other)
        assert one != parameter
        assert one != str(one)


async def test_a_handle_is_shared_as_text_and_never_pickled() -> None:
    async with opened() as (session, _, _):
        rref = new_rref(session, "layers.0.weight")
        assert Ref.parse(str(rref)) == rref.ref
        assert str(rref) in repr(rref)
        assert rref.owner == "ps0"
        for way in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match=r"send str\(handle\)"):
                way(rref)


# The value


async def test_a_value_comes_here() -> None:
    async with opened() as (session, stream, _):
        rref = new_rref(session, "weight")
        pending = rref.to_here()
        fetch = await answer_fetch(stream, {"x": torch.tensor([1.0, 2.0]), "n": 3})
        assert Ref.from_message(fetch.target) == rref.ref
        assert not fetch.HasField("context")
        value = await pending
        assert value["x"].tolist() == [1.0, 2.0] and value["n"] == 3


async def test_a_handle_is_held_until_its_value_has_come() -> None:
    async with opened() as (session, stream, _):
        pending = new_rref(session).to_here()
        frame = await stream.request()
        await stream.nothing_more()
        reply = Reply()
        payload = encoded(reply.fetch.value, 5)
        await stream.answer(frame.number, payload, fetch=reply.fetch)
        assert await pending == 5
        del pending
        released = (await stream.request()).request.release.object_ids
        assert list(released) == [frame.request.fetch.target.object_id]


async def test_gradients_go_back_through_a_value_of_the_pass() -> None:
    async with opened() as (session, stream, _), new_context() as context:
        rref = new_rref(session)
        token = torch.empty(0, requires_grad=True)
        rref.mark(context.id, token)
        assert rref.token(context.id) is token
        pending = rref.to_here()
        fetch = await answer_fetch(stream, torch.tensor([3.0]).requires_grad_())
        assert (fetch.context.number, fetch.call) == (context.id.number, 1)
        value = await pending
        assert value.requires_grad and value.tolist() == [3.0]
        backward = context.backward((2 * value).sum())
        frame, gradients = await posted(stream)
        assert (frame.request.backward.call, [each.tolist() for each in gradients]) == (1, [[2.0]])
        await give(stream, frame.number)
        await backward


async def test_a_value_of_another_pass_has_no_history() -> None:
    async with opened() as (session, stream, _):
        rref = new_rref(session)
        first = new_context()
        rref.mark(first.id._replace(number=7), torch.empty(0, requires_grad=True))
        async with first as context:
            assert rref.token(context.id) is None
            pending = rref.to_here()
            fetch = await answer_fetch(stream, torch.tensor([3.0]))
            assert fetch.context.number == context.id.number, "only the owner knows whether it is a parameter"
            assert not (await pending).requires_grad


async def test_without_grad_mode_a_value_has_no_history() -> None:
    async with opened() as (session, stream, _), new_context() as context:
        rref = new_rref(session)
        rref.mark(context.id, torch.empty(0, requires_grad=True))
        with torch.no_grad():
            pending = rref.to_here()
        assert not (await answer_fetch(stream, torch.tensor([3.0]))).HasField("context")
        assert not (await pending).requires_grad


# Handles that answers hand out


async def test_a_handle_of_this_owner_holds_a_count() -> None:
    async with opened() as (session, stream, _):
        ref = Ref("ps0", new_object_id(), "weight")
        rref = received(session, ref.to_message())
        assert rref.ref == ref
        del rref
        assert list((await stream.request()).request.release.object_ids) == [ref.object_id]
