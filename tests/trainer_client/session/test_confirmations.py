"""Tests that answers are confirmed with the next request or soon after."""

from __future__ import annotations

import asyncio

import pytest

from ps_wire.limits import MIB
from tests.trainer_client.scripted_owner import addresses, look_up, opened, reconnected


@pytest.fixture
async def stopped_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of the event loop stands still, so that no timer fires."""
    loop = asyncio.get_running_loop()
    now = loop.time()
    monkeypatch.setattr(loop, "time", lambda: now)


async def test_the_next_request_carries_the_confirmations(stopped_clock: None) -> None:
    async with opened() as (session, stream, _):
        pending = [look_up(session, name) for name in "ab"]
        await stream.requests(2)
        await stream.answer(2)
        await stream.answer(1)
        await addresses(pending)
        look_up(session, "c")
        assert list((await stream.request()).request.confirmed) == [2, 1]
        look_up(session, "d")
        assert list((await stream.request()).request.confirmed) == []


@pytest.mark.usefixtures("confirmed_soon")
async def test_answers_are_confirmed_soon_without_a_request() -> None:
    async with opened() as (session, stream, _):
        pending = [look_up(session, name) for name in "ab"]
        await stream.requests(2)
        await stream.answer(1)
        await stream.answer(2)
        await addresses(pending)
        confirmed: list[int] = []
        while len(confirmed) < 2:
            confirmed += (await stream.frame()).confirm.numbers
        assert confirmed == [1, 2]
        await stream.nothing_more()


async def test_large_answers_are_confirmed_at_once(stopped_clock: None) -> None:
    async with opened() as (session, stream, _):
        pending = [look_up(session, name) for name in "ab"]
        await stream.requests(2)
        await stream.answer(1, payload=bytes(9 * MIB))
        await pending[0]
        await stream.answer(2, payload=bytes(9 * MIB))
        await pending[1]
        frame = await stream.frame()
        assert list(frame.confirm.numbers) == [1, 2]


@pytest.mark.usefixtures("confirmed_soon")
async def test_an_unwanted_answer_is_confirmed_too() -> None:
    async with opened() as (session, stream, _):
        pending = look_up(session, "a")
        await stream.request()
        pending.cancel()
        assert (await stream.frame()).HasField("cancel")
        await stream.answer(1)
        assert list((await stream.frame()).confirm.numbers) == [1]


async def test_answers_without_a_stream_are_confirmed_on_the_next() -> None:
    async with opened() as (session, stream, owner):
        pending = look_up(session, "a")
        await stream.request()
        await stream.answer(1)
        await pending
        stream.cut()
        stream = await owner.stream()
        await stream.welcome(resumed=True)
        look_up(session, "b")
        assert list((await stream.request()).request.confirmed) == [1]


async def test_a_lost_session_has_nothing_to_confirm() -> None:
    async with opened() as (session, stream, owner):
        pending = look_up(session, "a")
        await stream.request()
        await stream.answer(1)
        await pending
        stream = await reconnected(stream, owner, resumed=False)
        await stream.nothing_more()
        look_up(session, "b")
        frame = await stream.request()
        assert (frame.number, list(frame.request.confirmed)) == (2, [])
