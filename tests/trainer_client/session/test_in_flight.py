"""Tests that requests in flight can be cancelled, and time out."""

from __future__ import annotations

import pytest

from ps_wire.errors import CancelledCallError, DeadlineExceededError
from tests.trainer_client.scripted_owner import look_up, opened, reconnected


async def test_cancelling_tells_the_owner() -> None:
    async with opened() as (session, stream, _):
        pending = look_up(session, "a")
        await stream.request()
        pending.cancel()
        frame = await stream.frame()
        assert (frame.number, frame.WhichOneof("body")) == (1, "cancel")


async def test_an_answer_that_is_late_gives_its_references_back() -> None:
    async with opened() as (session, stream, _):
        pending = look_up(session, "a")
        await stream.request()
        pending.cancel()
        await stream.frame()
        await stream.answer(1, granted=["one", "two", "two"])
        frame = await stream.request()
        assert list(frame.request.release.object_ids) == ["one", "two", "two"]


async def test_cancellations_are_sent_again_on_a_new_stream() -> None:
    async with opened() as (session, stream, owner):
        given_up, _kept = look_up(session, "a"), look_up(session, "b")
        await stream.requests(2)
        given_up.cancel()
        stream = await reconnected(stream, owner)
        assert sorted(stream.hello.unanswered) == [1, 2]
        frames = [await stream.frame(), await stream.frame()]
        assert [(frame.number, frame.WhichOneof("body")) for frame in frames] == [(1, "cancel"), (2, "request")]


async def test_a_call_that_takes_too_long_is_given_up() -> None:
    async with opened() as (session, stream, _):
        with pytest.raises(DeadlineExceededError, match=r"lookup: no answer from owner 'ps0' within 0.01 s"):
            await look_up(session, "a", timeout=0.01)
        assert [(await stream.frame()).WhichOneof("body") for _ in range(2)] == ["request", "cancel"]


async def test_a_deadline_without_a_connection_says_so() -> None:
    async with opened() as (session, stream, owner):
        stream.cut()
        await owner.stream()
        with pytest.raises(DeadlineExceededError, match="to which there is no connection"):
            await look_up(session, "a", timeout=0.01)


async def test_waits_for_a_cancelled_request_end() -> None:
    async with opened() as (session, stream, _):
        pending = look_up(session, "a")
        await stream.request()
        pending.cancel()
        await stream.answer(1)
        with pytest.raises(CancelledCallError):
            await pending


@pytest.mark.usefixtures("confirmed_soon")
async def test_cancelling_after_the_answer_sends_nothing() -> None:
    async with opened() as (session, stream, _):
        pending = look_up(session, "a")
        await stream.answer((await stream.request()).number)
        assert await pending == "1"
        pending.cancel()
        assert list((await stream.frame()).confirm.numbers) == [1]
