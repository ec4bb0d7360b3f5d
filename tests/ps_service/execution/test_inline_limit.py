"""Tests how long a request may take on the event loop."""

from __future__ import annotations

import asyncio
import math

import pytest

from ps_service.execution.inline_limit import (
    FIRST_PAUSE,
    HAND_OVERS,
    LONG_SECONDS,
    MOST_SECONDS,
    QUIET_SECONDS,
    SOON_SECONDS,
    InlineLimit,
)
from ps_wire.runtime.latency import INLINE_SECONDS
from tests.ps_service.clock import Clock

LONG = (LONG_SECONDS + MOST_SECONDS) / 2


class Owner:
    """A limit, with the clock and the threads that it looks at."""

    def __init__(self) -> None:
        self.clock, self.hand_over, self.busy = Clock(), MOST_SECONDS, False
        self.limit = InlineLimit(lambda: self.hand_over, lambda: self.busy, self.clock)
        self.limit.arrived(b"one")
        self.clock.now += 2 * QUIET_SECONDS

    async def run(self, seconds: float, gap: float) -> None:
        """Runs work on the event loop, and lets the time until the next request pass."""
        self.clock.now += seconds
        self.limit.ran(seconds)
        await asyncio.sleep(0)
        self.clock.now += gap


@pytest.fixture
def owner() -> Owner:
    return Owner()


def test_work_of_one_trainer_may_take_as_long_as_many_hand_overs(owner: Owner) -> None:
    owner.hand_over = 20e-6
    assert owner.limit.admits(HAND_OVERS * 19e-6)
    assert not owner.limit.admits(HAND_OVERS * 21e-6)
    owner = Owner()
    owner.hand_over = 1.0
    assert owner.limit.admits(0.99 * MOST_SECONDS), "however slow the machine is"
    assert not owner.limit.admits(1.01 * MOST_SECONDS)
    assert not owner.limit.admits(math.inf)


def test_only_short_work_before_a_hand_over_was_measured(owner: Owner) -> None:
    owner.hand_over = 0.0
    assert owner.limit.admits(0.9 * INLINE_SECONDS)
    assert not owner.limit.admits(INLINE_SECONDS)


def test_work_after_work_that_was_too_long_stays_with_its_thread(owner: Owner) -> None:
    for _ in range(2):
        assert not owner.limit.admits(2 * MOST_SECONDS), "a backward"
        assert owner.limit.admits(0.9 * INLINE_SECONDS)
        assert not owner.limit.admits(LONG), "its step"
        assert owner.limit.admits(LONG), "what follows"


def test_only_short_work_while_threads_are_busy(owner: Owner) -> None:
    owner.busy = True
    assert owner.limit.admits(0.9 * INLINE_SECONDS)
    assert not owner.limit.admits(LONG)
    owner.busy = False
    assert owner.limit.admits(LONG)


def test_only_short_work_while_several_trainers_send_requests(owner: Owner) -> None:
    for trainer in (b"two", b"one", b"two"):
        owner.limit.arrived(trainer)
        owner.clock.now += 0.9 * QUIET_SECONDS
        assert owner.limit.admits(0.9 * INLINE_SECONDS)
        assert not owner.limit.admits(LONG)
    owner.clock.now += 0.2 * QUIET_SECONDS
    owner.limit.arrived(b"two")
    assert owner.limit.admits(LONG), "the other one has been silent"


@pytest.mark.parametrize("gap", [0.0, 0.9 * SOON_SECONDS])
async def test_what_a_trainer_sends_at_once_comes_to_run_in_threads(owner: Owner, gap: float) -> None:
    admitted = 0
    while owner.limit.admits(LONG):
        admitted += 1
        await owner.run(LONG, gap)
    assert 1 < admitted < 10
    owner.clock.now += 1.1 * FIRST_PAUSE
    assert owner.limit.admits(LONG), "it is tried again"
    await owner.run(LONG, gap)
    assert not owner.limit.admits(LONG), "and once is enough then"
    owner.clock.now += 1.1 * FIRST_PAUSE
    assert not owner.limit.admits(LONG), "the pauses grow"
    owner.clock.now += 1.1 * FIRST_PAUSE
    assert owner.limit.admits(LONG)


async def test_work_that_arrives_in_the_same_turn_of_the_loop_has_waited(owner: Owner) -> None:
    admitted = 0
    while owner.limit.admits(LONG):
        admitted += 1
        owner.limit.ran(LONG)
        owner.clock.now += 100 * SOON_SECONDS
    assert admitted < 10


async def test_a_trainer_that_waits_for_each_answer_is_not_taken_for_one_that_does_not(owner: Owner) -> None:
    for number in range(100):
        assert owner.limit.admits(LONG)
        # Now and then a request comes early.
        await owner.run(LONG, 0.0 if number % 10 == 0 else 1.1 * SOON_SECONDS)


async def test_work_may_wait_for_work_that_is_not_long(owner: Owner) -> None:
    for _ in range(100):
        assert owner.limit.admits(0.9 * LONG_SECONDS)
        await owner.run(0.9 * LONG_SECONDS, 0.0)
