"""Tests that references are given back, and that handles of other owners are held before an answer is."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

import pytest

from ps_wire.errors import ForeignHandleError, UnknownNameError
from ps_wire.refs import Ref, new_object_id
from tests.trainer_client.scripted_owner import look_up, opened, reconnected
from trainer_client.handles.references import RRef

REF = Ref("ps1", new_object_id())


# References given back


async def test_references_given_back_in_one_turn_travel_in_one_request() -> None:
    async with opened() as (session, stream, _):
        for object_id in ("one", "two", "three"):
            session.release(object_id)
        assert list((await stream.request()).request.release.object_ids) == ["one", "two", "three"]
        await stream.nothing_more()


async def test_a_reference_may_be_given_back_from_another_thread() -> None:
    async with opened() as (session, stream, _):
        await asyncio.to_thread(session.release, "one")
        assert list((await stream.request()).request.release.object_ids) == ["one"]


async def test_a_closed_session_gives_nothing_back() -> None:
    async with opened() as (session, stream, _):
        await session.close()
        assert (await stream.frame()).HasField("goodbye")
        session.release("one")
        await stream.nothing_more()


# Handles of other owners


class OtherOwners:
    """Plays the client's other owners."""

    def __init__(self, error: Exception | None = None) -> None:
        self.may_go_on = asyncio.Event()
        self.asked: list[list[Ref]] = []
        self._error = error

    async def take_hold(self, refs: Iterable[Ref]) -> Sequence[object]:
        self.asked.append(list(refs))
        await self.may_go_on.wait()
        if self._error is not None:
            raise self._error
        return [object()]

    def held(self, ref: Ref) -> RRef:
        raise NotImplementedError


@pytest.mark.usefixtures("confirmed_soon")
async def test_an_answer_with_handles_of_other_owners_waits_until_they_are_held() -> None:
    others = OtherOwners()
    async with opened(others) as (session, stream, _):
        pending = look_up(session, "a")
        await stream.request()
        await stream.answer(1, borrowed=[REF.to_message()])
        await stream.nothing_more()
        assert (others.asked, pending.done()) == ([[REF]], False)
        others.may_go_on.set()
        assert (await pending, list((await stream.frame()).confirm.numbers)) == ("1", [1])


async def test_an_answer_that_comes_again_while_its_handles_are_taken_asks_for_them_once() -> None:
    others = OtherOwners()
    async with opened(others) as (session, stream, owner):
        pending = look_up(session, "a")
        await stream.request()
        await stream.answer(1, borrowed=[REF.to_message()])
        await stream.nothing_more()
        stream = await reconnected(stream, owner)
        await stream.request()
        await stream.answer(1, borrowed=[REF.to_message()])
        await stream.nothing_more()
        others.may_go_on.set()
        await pending
        assert others.asked == [[REF]]


async def test_handles_that_cannot_be_held_are_an_error_of_the_call() -> None:
    others = OtherOwners(UnknownNameError("there is no ps1"))
    others.may_go_on.set()
    async with opened(others) as (session, stream, _):
        pending = look_up(session, "a")
        await stream.request()
        await stream.answer(1, borrowed=[REF.to_message()], granted=["one", "two"])
        with pytest.raises(UnknownNameError, match="there is no ps1"):
            await pending
        # What the answer's owner has granted is given back.
        assert list((await stream.request()).request.release.object_ids) == ["one", "two"]


async def test_a_session_that_knows_no_other_owners_refuses_their_handles() -> None:
    async with opened() as (session, _, _owner):
        with pytest.raises(ForeignHandleError, match="belongs to another owner"):
            session.borrowed(REF)
