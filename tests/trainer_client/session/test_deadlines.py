"""Tests that one timer ends every request at its deadline."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from ps_wire.errors import DeadlineExceededError
from tests.trainer_client.scripted_owner import look_up, opened
from trainer_client.session.waits import Deadlines


class Clock:
    """A clock, and an event loop that has one timer at most."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.rings_at = math.inf
        self._ring: Callable[[], None] | None = None
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def call_later(self, seconds: float, ring: Callable[[], None]) -> Any:
        assert self._ring is None
        self.rings_at, self._ring = self.now + seconds, ring
        return SimpleNamespace(cancel=self._cancel)

    def _cancel(self) -> None:
        self.rings_at, self._ring = math.inf, None

    def advance(self) -> None:
        """To the moment when the timer rings."""
        ring = self._ring
        assert ring is not None
        self.now = self.rings_at
        ring()


class Request:
    def __init__(self, deadline: float, is_done: bool = False) -> None:
        self.deadline = deadline
        self.is_done = is_done

    @property
    def settled(self) -> bool:
        return self.is_done


def watched(clock: Clock, requests: list[Any]) -> tuple[Deadlines, list[float]]:
    """Deadlines of some requests, and the deadlines of those that have expired."""
    expired: list[float] = []

    def expire(request: Any) -> None:
        request.is_done = True
        expired.append(request.deadline)

    deadlines = Deadlines(clock, lambda: requests, expire)  # type: ignore[arg-type]
    for request in requests:
        if request.deadline < deadlines.next:
            deadlines.set(request.deadline)
    return deadlines, expired


def test_requests_expire_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    deadlines, expired = watched(clock, [Request(each) for each in (130.0, 110.0, 120.0, math.inf)])
    seen = []
    for _ in range(3):
        clock.advance()
        seen.append((clock.now, list(expired)))
    assert seen == [(110.0, [110.0]), (120.0, [110.0, 120.0]), (130.0, [110.0, 120.0, 130.0])]
    assert deadlines.next == clock.rings_at == math.inf


def test_a_timer_for_a_request_that_is_done_moves_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    requests = [Request(110.0), Request(150.0)]
    _, expired = watched(clock, requests)
    requests[0].is_done = True
    clock.advance()
    assert (clock.now, clock.rings_at, expired) == (110.0, 150.0, [])


def test_a_timer_that_rings_a_little_early_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    _, expired = watched(clock, [Request(110.0), Request(110.0005), Request(120.0)])
    clock.rings_at -= 0.0005
    clock.advance()
    assert (expired, clock.rings_at) == ([110.0, 110.0005], 120.0)


def test_nothing_rings_once_it_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    deadlines, _ = watched(clock, [Request(110.0)])
    deadlines.stop()
    assert deadlines.next == clock.rings_at == math.inf


async def test_each_request_of_a_session_ends_at_its_own_time() -> None:
    async with opened() as (session, _, _owner):
        late, never = look_up(session, "a", timeout=60.0), look_up(session, "b", timeout=None)
        pending = [look_up(session, "c", timeout=seconds) for seconds in (0.02, 0.01, 0.03)]
        results = await asyncio.gather(*pending, return_exceptions=True)
        assert all(isinstance(each, DeadlineExceededError) for each in results)
        assert not late.settled and not never.settled
