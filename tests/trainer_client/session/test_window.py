"""Tests the limits on the number of requests in flight, and on the bytes of large ones."""

from __future__ import annotations

import pytest

from ps_wire.errors import DeadlineExceededError
from ps_wire.v1.frames_pb2 import Frame, Waiting
from tests.trainer_client.scripted_owner import addresses, look_up, opened


async def test_no_more_requests_are_sent_than_the_owner_takes_at_once() -> None:
    async with opened(max_in_flight=2) as (session, stream, _):
        pending = [look_up(session, name) for name in "abcd"]
        assert await stream.requests(2) == ["a", "b"]
        await stream.nothing_more()
        await stream.answer(2)
        assert await stream.requests(1) == ["c"]
        await stream.nothing_more()
        await stream.answer(1)
        await stream.answer(3)
        assert await stream.requests(1) == ["d"]
        await stream.answer(4)
        assert await addresses(pending) == ["1", "2", "3", "4"]


async def test_large_requests_wait_for_each_other_and_small_ones_go_past_them() -> None:
    async with opened(max_session_bytes=300_000) as (session, stream, _):
        for name, nbytes in (("a", 200_000), ("b", 200_000), ("c", 70_000), ("d", 10)):
            look_up(session, name, nbytes)
        # "c" has room beside "a", but stays behind "b".
        assert await stream.requests(2) == ["a", "d"]
        await stream.nothing_more()
        await stream.answer(1)
        assert await stream.requests(2) == ["b", "c"]


async def test_a_request_larger_than_the_budget_is_sent_alone() -> None:
    async with opened(max_session_bytes=100_000) as (session, stream, _):
        for name, nbytes in (("a", 500_000), ("b", 90_000)):
            look_up(session, name, nbytes)
        assert await stream.requests(1) == ["a"]
        await stream.nothing_more()
        await stream.answer(1)
        assert await stream.requests(1) == ["b"]


async def test_requests_that_wait_for_others_on_the_owner_no_longer_count_in_bytes() -> None:
    async with opened(max_session_bytes=100_000) as (session, stream, _):
        look_up(session, "a", 90_000)
        look_up(session, "b", 90_000)
        assert await stream.requests(1) == ["a"]
        await stream.nothing_more()
        await stream.send(Frame(waiting=Waiting(numbers=[1])))
        assert await stream.requests(1) == ["b"]


async def test_a_request_given_up_while_it_waits_is_never_sent() -> None:
    async with opened(max_in_flight=1) as (session, stream, _):
        pending = [look_up(session, name) for name in "abc"]
        await stream.requests(1)
        pending[1].cancel()
        await stream.answer(1)
        assert await stream.requests(1) == ["c"]


async def test_a_request_that_expires_makes_room_for_the_next() -> None:
    async with opened(max_in_flight=1) as (session, stream, _):
        first, _second = look_up(session, "a", timeout=0.01), look_up(session, "b")
        assert await stream.requests(1) == ["a"]
        with pytest.raises(DeadlineExceededError):
            await first
        assert (await stream.frame()).HasField("cancel")
        assert await stream.requests(1) == ["b"]
