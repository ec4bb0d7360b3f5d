"""Tests that requests end at their deadlines, with one timer for all."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import uvloop

from ps_service.rpc.waiting_requests import Deadlines


class Request:
    """Stands for an execution that some session handler has queued."""

    def __init__(self, running: dict[int, Any], number: int, seconds: float) -> None:
        self.seconds, self.deadline = seconds, 0.0
        self.expired: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._running, self._number = running, number
        running[number] = self

    def expire(self) -> None:
        del self._running[self._number]
        self.expired.set_result(asyncio.get_running_loop().time())


async def expired(request: Request) -> float:
    async with asyncio.timeout(50):
        return await request.expired


async def test_requests_end_at_their_deadlines_in_whatever_order_they_came() -> None:
    running: dict[int, Any] = {}
    expiry = Deadlines(running)
    requests = [Request(running, number, seconds) for number, seconds in enumerate([0.02, 0.001, 60.0, 0.01])]
    for request in requests:
        expiry.watch(request)  # type: ignore[arg-type]
    for index in (1, 3, 0):
        # Timers of event loops count in milliseconds.
        assert await expired(requests[index]) >= requests[index].deadline - 0.002
    assert list(running.values()) == [requests[2]]
    expiry.close()


@pytest.mark.parametrize("seconds", [0.0001, 1e-9])
def test_uvloop_takes_no_timer_for_what_is_due_at_once(seconds: float) -> None:
    async def watch() -> None:
        running: dict[int, Any] = {}
        expiry = Deadlines(running)
        first, second = Request(running, 1, seconds), Request(running, 2, 0.01)
        for request in (first, second):
            expiry.watch(request)  # type: ignore[arg-type]
        for request in (first, second):
            await expired(request)

    uvloop.run(watch())


async def test_a_request_that_has_its_answer_is_left_alone() -> None:
    running: dict[int, Any] = {}
    expiry = Deadlines(running)
    first, second = Request(running, 1, 0.001), Request(running, 2, 0.002)
    for request in (first, second):
        expiry.watch(request)  # type: ignore[arg-type]
    del running[1]
    await expired(second)
    assert not first.expired.done()


async def test_requests_without_a_deadline_never_end() -> None:
    running: dict[int, Any] = {}
    expiry = Deadlines(running)
    endless, short = Request(running, 1, 0.0), Request(running, 2, 0.001)
    expiry.watch(short)  # type: ignore[arg-type]
    await expired(short)
    assert not endless.expired.done()


async def test_nothing_ends_after_it_was_closed() -> None:
    running: dict[int, Any] = {}
    expiry, other = Deadlines(running), Deadlines(later := dict[int, Any]())
    closed, watched = Request(running, 1, 0.001), Request(later, 1, 0.002)
    expiry.watch(closed)  # type: ignore[arg-type]
    other.watch(watched)  # type: ignore[arg-type]
    expiry.close()
    await expired(watched)
    assert not closed.expired.done()


async def test_a_request_that_stays_does_not_set_the_timer_again() -> None:
    running: dict[int, Any] = {}
    expiry = Deadlines(running)
    stubborn, last = Request(running, 1, 0.001), Request(running, 2, 0.005)
    count = []
    stubborn.expire = lambda: count.append(None)  # type: ignore[method-assign]
    for request in (stubborn, last):
        expiry.watch(request)  # type: ignore[arg-type]
    await expired(last)
    # Once for each deadline; on a busy machine both pass before the timer rings.
    assert len(count) in (1, 2)
    assert expiry._timer is None
