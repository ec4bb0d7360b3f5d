"""Tests that requests are numbered, sent again after a broken stream, and fail when the session is lost."""

from __future__ import annotations

import asyncio

import pytest

from ps_wire.connections.connection import ConnectionBroken
from ps_wire.connections.in_process import MemoryConnection
from ps_wire.errors import (
    ClosedError,
    InvalidArgumentError,
    SessionLostError,
    TooLargeError,
    UnavailableError,
    UnknownNameError,
    to_message,
)
from ps_wire.limits import MAX_FRAME_BYTES, PROTOCOL
from ps_wire.refs import Ref, new_object_id
from ps_wire.v1.frames_pb2 import Frame, Goodbye, Refusal
from ps_wire.v1.operations_pb2 import LookupReply, Member
from tests.trainer_client.scripted_owner import (
    TRAINER,
    ScriptedOwner,
    Stream,
    addresses,
    look_up,
    new_session,
    opened,
    reconnected,
)
from trainer_client.session.session import Session
from trainer_client.session.settings import Settings
from trainer_client.transport.in_process import MemoryConnector

REF = Ref("ps1", new_object_id())


class NothingListens(MemoryConnector):
    """A connector to an address at which nothing listens."""

    async def connect(self) -> MemoryConnection:
        raise ConnectionBroken("nothing listens")


# Opening


async def test_a_session_introduces_itself() -> None:
    async with opened() as (session, stream, _):
        hello = stream.hello
        assert (hello.protocol, hello.trainer, hello.incarnation) == (PROTOCOL, TRAINER, "")
        assert (session.owner, session.state) == ("ps0", "connected")


async def test_an_owner_that_refuses_the_session_is_not_tried_again() -> None:
    owner = ScriptedOwner()
    session = new_session(owner)
    opening = asyncio.create_task(session.open())
    refusal = Refusal(error=to_message(InvalidArgumentError("another protocol")))
    await (await owner.stream()).send(Frame(refusal=refusal))
    with pytest.raises(InvalidArgumentError, match="another protocol"):
        await opening
    assert session.state == "closed"
    await session.close()


async def test_an_owner_that_cannot_be_reached_is_unavailable() -> None:
    session = Session(NothingListens(ScriptedOwner().serve), TRAINER, Settings(connect_timeout=0.0))
    with pytest.raises(UnavailableError, match="is it running"):
        await session.open()
    await session.close()


# Numbers and answers


async def test_requests_are_numbered_in_the_order_in_which_they_are_submitted() -> None:
    async with opened() as (session, stream, _):
        pending = [look_up(session, name) for name in "abc"]
        frames = [await stream.request() for _ in pending]
        assert [(frame.number, frame.request.lookup.name) for frame in frames] == [(1, "a"), (2, "b"), (3, "c")]


async def test_answers_may_come_in_any_order() -> None:
    async with opened() as (session, stream, _):
        pending = [look_up(session, name) for name in "abc"]
        await stream.requests(3)
        for number in (3, 1, 2):
            await stream.answer(number)
        assert await addresses(pending) == ["1", "2", "3"]


async def test_a_request_from_another_thread_is_sent() -> None:
    async with opened() as (session, stream, _):
        waiting = asyncio.create_task(asyncio.to_thread(lambda: look_up(session, "a").wait(10)))
        await stream.answer((await stream.request()).number)
        assert await waiting == "1"


async def test_an_error_in_the_answer_is_raised() -> None:
    async with opened() as (session, stream, _):
        pending = look_up(session, "a")
        await stream.refuse((await stream.request()).number, UnknownNameError("there is no a"))
        with pytest.raises(UnknownNameError, match="there is no a"):
            await pending


async def test_an_answer_that_comes_twice_is_taken_once() -> None:
    async with opened() as (session, stream, _):
        first, second = look_up(session, "a"), look_up(session, "b")
        await stream.requests(2)
        await stream.answer(1, lookup=LookupReply(member=Member(address="right")))
        await stream.answer(1, lookup=LookupReply(member=Member(address="wrong")))
        await stream.answer(2)
        assert await addresses([first, second]) == ["right", "2"]


async def test_the_time_that_the_caller_will_wait_is_sent() -> None:
    async with opened(settings={"timeout": 7.0}) as (session, stream, _):
        pending = [look_up(session, "a"), look_up(session, "b", timeout=3.0), look_up(session, "c", timeout=None)]
        seconds = [(await stream.request()).request.timeout_seconds for _ in pending]
        assert seconds == [7.0, 3.0, 0.0]


@pytest.mark.parametrize("frame", [Frame(number=1), Frame(goodbye=Goodbye())], ids=["empty", "goodbye"])
async def test_a_frame_that_no_owner_sends_breaks_the_stream(frame: Frame) -> None:
    async with opened() as (session, stream, owner):
        pending = look_up(session, "a")
        await stream.request()
        await stream.send(frame)
        stream = await owner.stream()
        await stream.welcome(resumed=True)
        await stream.answer((await stream.request()).number)
        assert await pending == "1"


# Broken streams


async def test_unanswered_requests_are_sent_again_with_their_numbers() -> None:
    async with opened() as (session, stream, owner):
        pending = [look_up(session, name) for name in "abc"]
        await stream.requests(3)
        await stream.answer(2)
        await pending[1]
        stream = await reconnected(stream, owner)
        assert list(stream.hello.unanswered) == [1, 3]
        frames = [await stream.request() for _ in range(2)]
        assert [(frame.number, frame.request.lookup.name) for frame in frames] == [(1, "a"), (3, "c")]
        await stream.answer(1)
        await stream.answer(3)
        assert await addresses(pending) == ["1", "2", "3"]


async def test_a_new_stream_names_the_owner_and_the_state_that_is_known() -> None:
    async with opened(owner="ps7", incarnation="x") as (_, stream, owner):
        stream.cut()
        hello = (await owner.stream()).hello
        assert (hello.owner, hello.incarnation) == ("ps7", "x")


async def test_requests_without_a_stream_are_sent_on_the_next() -> None:
    async with opened() as (session, stream, owner):
        stream.cut()
        stream = await owner.stream()
        assert session.state == "disconnected"
        pending = look_up(session, "a")
        await stream.welcome(resumed=True)
        await stream.answer((await stream.request()).number)
        assert await pending == "1"


async def test_a_payload_is_sent_again_too() -> None:
    async with opened() as (session, stream, owner):
        look_up(session, "a", nbytes=1000)
        assert (await stream.request()).payload_bytes == 1000
        stream = await reconnected(stream, owner)
        assert (await stream.request()).payload_bytes == 1000


# Lost sessions


@pytest.mark.parametrize(
    ("incarnation", "why_lost", "told"),
    [
        ("first", "", "the lease had run out"),
        ("first", "an operator ended it", "an operator ended it"),
        ("second", "", "it has restarted"),
    ],
)
async def test_an_owner_that_forgot_the_session_ends_its_requests(incarnation: str, why_lost: str, told: str) -> None:
    async with opened() as (session, stream, owner):
        pending = look_up(session, "a")
        await stream.request()
        stream.cut()
        stream = await owner.stream()
        await stream.welcome(incarnation=incarnation, why_lost=why_lost)
        with pytest.raises(SessionLostError, match=told):
            await pending
        await stream.nothing_more()
        assert (session.losses, session.restarts) == (1, int(incarnation == "second"))


async def test_a_session_that_was_lost_goes_on_with_new_requests() -> None:
    async with opened() as (session, stream, owner):
        stream.cut()
        stream = await owner.stream()
        await stream.welcome(incarnation="second")
        pending = look_up(session, "a")
        await stream.answer((await stream.request()).number)
        assert await pending == "1"


async def test_a_session_that_is_resumed_is_not_lost() -> None:
    async with opened() as (session, stream, owner):
        lost: list[None] = []
        session.when_lost(lambda: lost.append(None))
        stream = await reconnected(stream, owner, incarnation="second")
        await _answered(session, stream)
        assert (session.losses, session.restarts, lost) == (0, 0, [])


async def test_the_loss_is_told_once() -> None:
    async with opened() as (session, stream, owner):
        lost: list[None] = []
        session.when_lost(lambda: lost.append(None))
        stream.cut()
        stream = await owner.stream()
        await stream.welcome()
        await _answered(session, stream)
        assert lost == [None]


async def test_a_session_that_cannot_reconnect_in_time_ends_its_requests() -> None:
    async with opened(settings={"reconnect_timeout": 0.0}) as (session, stream, _):
        lost = asyncio.Event()
        session.when_lost(lost.set)
        pending = look_up(session, "a")
        await stream.request()
        stream.cut()
        with pytest.raises(UnavailableError):
            await pending
        await asyncio.wait_for(lost.wait(), 10)
        assert session.state == "closed"
        with pytest.raises(UnavailableError):
            await look_up(session, "b")


async def test_who_waits_for_a_session_that_is_given_up_while_it_is_connected_is_told() -> None:
    async with opened() as (session, _, _):
        await session.give_up(UnavailableError("its owner listens elsewhere"))
        waiting = asyncio.create_task(session.settled())
        await asyncio.sleep(0)
        assert waiting.done()
        with pytest.raises(UnavailableError, match="listens elsewhere"):
            await waiting


# Sizes


async def test_a_payload_over_the_limit_of_the_owner_is_refused_here() -> None:
    async with opened(max_message_bytes=1000) as (session, stream, _):
        with pytest.raises(TooLargeError, match="1,001 bytes of tensors"):
            await look_up(session, "a", 1001)
        look_up(session, "b", 1000)
        assert (await stream.request()).number == 1


async def test_a_message_over_the_size_of_a_frame_is_refused_here() -> None:
    async with opened() as (session, stream, _):
        with pytest.raises(TooLargeError, match="besides its tensors"):
            await look_up(session, "a" * (MAX_FRAME_BYTES + 1))
        await stream.nothing_more()


async def test_an_answer_over_the_limit_of_the_owner_is_an_error() -> None:
    async with opened(max_message_bytes=1000) as (session, stream, _):
        large, after = look_up(session, "a"), look_up(session, "b")
        await stream.requests(2)
        await stream.answer(1, bytes(1001))
        await stream.answer(2, bytes(1000))
        with pytest.raises(TooLargeError, match="1,001 bytes; the limit is 1,000"):
            await large
        assert await after == "2"


async def test_answers_may_arrive_part_by_part_all_at_once() -> None:
    async with opened(max_message_bytes=1000) as (session, stream, _):
        pending = [look_up(session, name) for name in "abcd"]
        await stream.requests(4)
        for number in range(1, 5):
            await stream.answer(number, bytes(1), announced=1000)
        for number in range(1, 5):
            await stream.part(number, 1, bytes(999))
        assert await addresses(pending) == ["1", "2", "3", "4"]


# Closing


async def test_closing_sends_goodbye_and_ends_waiting_requests() -> None:
    async with opened() as (session, stream, _):
        pending = look_up(session, "a")
        await stream.request()
        await session.close()
        assert (await stream.frame()).HasField("goodbye")
        with pytest.raises(ClosedError):
            await pending
        with pytest.raises(ClosedError):
            await look_up(session, "b")
        assert session.state == "closed"


async def test_a_session_without_a_stream_is_closed_at_once() -> None:
    async with opened() as (session, stream, owner):
        stream.cut()
        await owner.stream()
        pending = look_up(session, "a")
        await session.close()
        with pytest.raises(ClosedError):
            await pending


async def _answered(session: Session, stream: Stream) -> None:
    """Has one request answered, before which the session has done everything else."""
    pending = look_up(session, "last")
    await stream.answer((await stream.request()).number)
    await pending
