"""Tests that requests have results, and take their deadlines from the surrounding call."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import threading
from collections.abc import Callable

import pytest

from ps_wire.codec.payload import PayloadReader, PayloadWriter
from ps_wire.errors import CancelledCallError, RemoteError
from ps_wire.runtime.noop import noop
from ps_wire.runtime.scopes import Scope, current_scope
from ps_wire.v1.frames_pb2 import Frame, Reply, Request
from ps_wire.v1.operations_pb2 import FetchRequest, LookupRequest
from tests.trainer_client.scripted_owner import look_up, opened, reconnected
from trainer_client.pending import Pending


def echoed(reply: Reply, payload: PayloadReader) -> bytes:
    return bytes(payload.take(0, payload.nbytes))


async def test_the_result_is_made_of_the_answer_and_its_payload() -> None:
    async with opened() as (session, stream, _):
        payload = PayloadWriter()
        payload.add(memoryview(b"tensor"))
        pending = session.submit(Request(fetch=FetchRequest()), payload, echoed)
        assert (await stream.request()).payload_bytes == 6
        await stream.answer(1, payload=b"answer")
        assert await pending == b"answer"


async def test_a_frame_that_holds_the_request_is_sent_as_it_is() -> None:
    async with opened() as (session, stream, _):
        frame = Frame()
        frame.request.fetch.target.owner = "ps0"
        pending = session.submit(frame, None, noop)
        assert (await stream.request()).request.fetch.target.owner == "ps0"
        await stream.answer(1)
        assert await pending is None


async def test_the_result_is_made_in_the_thread_that_waits() -> None:
    async with opened() as (session, stream, _):
        pending = session.submit(Request(fetch=FetchRequest()), None, lambda *_: threading.get_ident())
        await stream.request()
        waiting = asyncio.create_task(asyncio.to_thread(lambda: (pending.wait(10), threading.get_ident())))
        await stream.answer(1)
        made_in, waited_in = await waiting
        assert made_in == waited_in != threading.get_ident()


async def test_an_error_while_the_result_is_made_is_raised() -> None:
    async with opened() as (session, stream, _):

        def fails(reply: Reply, payload: PayloadReader) -> None:
            raise ZeroDivisionError

        pending = session.submit(Request(fetch=FetchRequest()), None, fails)
        await stream.request()
        await stream.answer(1)
        with pytest.raises(ZeroDivisionError):
            await pending


async def test_an_exception_of_hosted_code_keeps_its_type() -> None:
    async with opened() as (session, stream, _):
        pending = look_up(session, "a")
        await stream.request()
        await stream.refuse(1, RemoteError("not that", "builtins.ValueError"))
        with pytest.raises(ValueError, match="not that") as caught:
            await pending
        assert isinstance(caught.value, RemoteError)


# References that an answer hands out


async def test_references_of_an_unused_answer_are_given_back() -> None:
    async with opened() as (session, stream, _):
        pending = look_up(session, "a")
        await stream.request()
        await stream.answer(1, granted=["one"])
        await _told(pending)
        del pending
        gc.collect()
        assert list((await stream.request()).request.release.object_ids) == ["one"]


@pytest.mark.usefixtures("confirmed_soon")
async def test_references_of_an_answer_that_is_taken_are_kept() -> None:
    async with opened() as (session, stream, _):
        pending = look_up(session, "a")
        await stream.request()
        await stream.answer(1, granted=["one"])
        await pending
        del pending
        gc.collect()
        assert (await stream.frame()).HasField("confirm")


# Inside another request


def _nest(scope: Scope, make: Callable[[], Pending[str]]) -> Pending[str]:
    """Makes a request inside another."""
    current_scope.set(scope)
    return make()


async def _told(pending: Pending[str]) -> None:
    """Waits until the answer is there, without taking it."""
    came = asyncio.Event()
    pending.on_done(came.set)
    await came.wait()


async def test_a_nested_request_is_one_deeper_and_ends_with_the_outer_one() -> None:
    async with opened() as (session, stream, _):
        contextvars.copy_context().run(_nest, Scope(seconds=5.0, depth=2), lambda: look_up(session, "a", timeout=60.0))
        request = (await stream.request()).request
        assert request.depth == 3
        assert 0 < request.timeout_seconds <= 5.0


async def test_a_nested_request_with_less_time_keeps_it() -> None:
    async with opened() as (session, stream, _):
        contextvars.copy_context().run(_nest, Scope(seconds=5.0), lambda: look_up(session, "a", timeout=1.0))
        assert (await stream.request()).request.timeout_seconds == 1.0


async def test_a_nested_request_is_given_up_with_the_outer_one() -> None:
    async with opened() as (session, stream, _):
        scope = Scope()
        pending = contextvars.copy_context().run(_nest, scope, lambda: look_up(session, "a"))
        await stream.request()
        scope.cancel()
        assert (await stream.frame()).HasField("cancel")
        with pytest.raises(CancelledCallError):
            await pending


async def test_large_nested_requests_do_not_wait_for_the_budget() -> None:
    async with opened(max_session_bytes=100_000) as (session, stream, _):
        look_up(session, "outer", 90_000)
        contextvars.copy_context().run(_nest, Scope(), lambda: look_up(session, "nested", 90_000))
        assert await stream.requests(2) == ["outer", "nested"]


# Requests that follow others


async def test_what_was_answered_before_is_not_waited_for_when_a_request_is_sent_again() -> None:
    """The owner may have been killed, and know of neither."""
    async with opened() as (session, stream, owner):
        asked = [look_up(session, name) for name in "ab"]
        last = session.submit(Request(lookup=LookupRequest(name="c")), None, noop, follows=asked)
        assert [list((await stream.request()).request.after) for _ in range(3)] == [[], [], [1, 2]]
        await stream.answer(1)
        await asked[0]
        stream = await reconnected(stream, owner)
        assert [list((await stream.request()).request.after) for _ in range(2)] == [[], [2]]
        await stream.answer(2)
        await stream.answer(3)
        await last


async def test_what_was_answered_while_a_request_waits_for_room_is_not_waited_for() -> None:
    async with opened(max_in_flight=1) as (session, stream, _):
        first = look_up(session, "a")
        second = session.submit(Request(lookup=LookupRequest(name="b")), None, noop, follows=[first])
        await stream.request()
        await stream.answer(1)
        assert list((await stream.request()).request.after) == []
        await stream.answer(2)
        await second
