"""Tests of requests that are sent again because their object moves."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ps_wire.errors import ClosedError, DeadlineExceededError, ObjectMovedError
from ps_wire.v1.frames_pb2 import Request
from ps_wire.v1.operations_pb2 import LookupRequest, MoveReply
from tests.trainer_client.scripted_owner import look_up, opened
from tests.waiting import until
from trainer_client.session import moves


class Unreached:
    """Other owners, none of which is reached until the client `ends`."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.ends = asyncio.get_running_loop().create_future()

    async def reach(self, owner: str) -> Any:
        self.asked.set()
        await self.ends


class Reached:
    """Other owners, all of which are this session."""

    def __init__(self, session: Any) -> None:
        self._session = session

    async def reach(self, owner: str) -> Any:
        return self._session


@pytest.mark.parametrize("ends", ["close", "close at once", "fail", "others"])
async def test_a_request_that_is_to_be_sent_again_fails_when_the_client_is_closed(ends: str) -> None:
    others = Unreached()
    async with opened(others) as (session, stream, _):
        sent = look_up(session, "net")
        behind = look_up(session, "later")
        number = (await stream.request()).number
        await stream.requests(1)
        await stream.refuse(number, ObjectMovedError("'net' has moved", "ps1", "a move", "an id"))
        if ends == "close at once":
            await until(lambda: session.moves._tasks)
        else:
            await others.asked.wait()
        if ends == "others":
            others.ends.cancel()
        else:
            await session.close(fails=ends == "fail")
        with pytest.raises(ClosedError, match="this client is closed"):
            await sent
        behind.cancel()


async def test_a_request_for_an_object_that_is_about_to_move_fails_when_the_client_is_closed() -> None:
    async with opened() as (session, stream, _):
        sent = look_up(session, "net")
        number = (await stream.request()).number
        await stream.refuse(number, ObjectMovedError("'net' is about to move", "", "", "an id"))
        await until(lambda: session.moves._tasks)
        await session.close()
        with pytest.raises(ClosedError, match="this client is closed"):
            await sent


async def test_a_request_ends_at_its_deadline_while_the_owner_it_has_moved_to_is_not_reached() -> None:
    others = Unreached()
    async with opened(others) as (session, stream, _):
        sent = look_up(session, "net", timeout=0.3)
        await stream.refuse((await stream.request()).number, ObjectMovedError("'net' has moved", "ps1", "", "an id"))
        await others.asked.wait()
        async with asyncio.timeout(10.0):
            with pytest.raises(DeadlineExceededError, match=r"lookup: no answer from owner 'ps0'.* within 0\.3 s"):
                await sent
        assert not session.requests.window.requests()
        others.ends.cancel()
        await until(lambda: not session.requests.aside)


async def test_a_request_that_was_sent_to_another_owner_ends_at_its_deadline() -> None:
    async with opened(owner="ps1") as (other, there, _), opened(Reached(other)) as (session, stream, _):
        sent = look_up(session, "net", timeout=1.0)
        first = await stream.request()
        await stream.refuse(first.number, ObjectMovedError("'net' has moved", "ps1", "", "an id"))
        await there.answer((await there.request()).number, move=MoveReply())
        again = await there.request()
        assert first.request.timeout_seconds == 1.0
        assert 0.0 < again.request.timeout_seconds < 1.0, "what is left"
        async with asyncio.timeout(10.0):
            with pytest.raises(DeadlineExceededError, match="no answer from owner 'ps1' within 1 s"):
                await sent


async def test_a_request_that_is_sent_to_its_owner_again_ends_at_its_deadline() -> None:
    async with opened() as (session, stream, _):
        sent = look_up(session, "net", timeout=0.3)
        for _ in range(3):
            number = (await stream.request()).number
            await stream.refuse(number, ObjectMovedError("'net' is about to move", "", "", "an id"))
        async with asyncio.timeout(10.0):
            with pytest.raises(DeadlineExceededError):
                await sent


@pytest.mark.parametrize("later_first", [True, False], ids=["the later one first", "the earlier one first"])
async def test_requests_that_are_refused_one_by_one_are_sent_again_once_in_their_order(
    monkeypatch: pytest.MonkeyPatch, later_first: bool
) -> None:
    monkeypatch.setattr(moves, "_AGAIN_SECONDS", 0.05)
    closed = ObjectMovedError("it is about to move", "", "", "an id")
    async with opened() as (session, stream, _):

        def follow(name: str, *follows: Any) -> Any:
            request = Request(lookup=LookupRequest(name=name))
            return session.submit(request, None, lambda reply, _: reply.lookup.member.address, follows=follows)

        async def arrived(count: int) -> dict[str, Any]:
            """The next requests, by name."""
            seen: dict[str, Any] = {}
            while len(seen) < count:
                frame = await stream.frame()
                if frame.HasField("request"):
                    assert frame.request.lookup.name not in seen
                    seen[frame.request.lookup.name] = frame
            return seen

        first = look_up(session, "first")
        second = follow("second", first)
        sent = await arrived(2)
        await stream.refuse(sent["first"].number, closed)
        await until(lambda: session.moves._tasks)
        third = follow("third", first)
        fourth = follow("fourth", second, third)
        for turn in range(2):
            sent = await arrived(4)
            assert list(sent) == ["first", "second", "third", "fourth"]
            numbers = {name: each.number for name, each in sent.items()}
            assert [list(each.request.after) for each in sent.values()] == [
                [],
                [numbers["first"]],
                [numbers["first"]],
                [numbers["second"], numbers["third"]],
            ]
            if not turn:
                for name in ("third", "first") if later_first else ("first", "third"):
                    await stream.refuse(numbers[name], closed)
        for number in numbers.values():
            await stream.answer(number)
        assert [await each for each in (first, second, third, fourth)] == [str(each) for each in numbers.values()]
        await until(lambda: not session.moves._tasks)
        # One that was sent twice would have no answer yet.
        assert not (session.requests.aside or session.requests.window.requests())
