"""Tests when an owner doubts that it may act for its name."""

from __future__ import annotations

from ps_service.sessions.fence import BEAT_SECONDS, PATIENCE_SECONDS, Fence
from tests.ps_service.clock import Clock


def watched() -> tuple[Fence, Clock, list[str]]:
    clock, doubts = Clock(), list[str]()
    fence = Fence(clock)
    fence.watch(lambda: doubts.append("doubt"))
    return fence, clock, doubts


def test_one_that_nobody_can_replace_is_always_sure() -> None:
    clock = Clock()
    fence = Fence(clock)
    clock.now += 1e9
    assert fence.is_sure() and not fence.watched


def test_while_beats_come_it_is_sure() -> None:
    fence, clock, doubts = watched()
    for _ in range(20):
        clock.now += BEAT_SECONDS
        fence.beat()
        assert fence.is_sure()
    clock.now += PATIENCE_SECONDS
    assert fence.is_sure() and not doubts


def test_without_a_beat_it_doubts_once_and_late_beats_change_nothing() -> None:
    fence, clock, doubts = watched()
    clock.now += PATIENCE_SECONDS + 0.1
    fence.beat()  # the timer may come before the requests
    assert not fence.is_sure() and fence.is_doubted
    fence.beat()
    assert not fence.is_sure() and doubts == ["doubt"]
    fence.settle()
    assert fence.is_sure() and not fence.is_doubted
    clock.now += PATIENCE_SECONDS + 0.1
    assert not fence.is_sure() and doubts == ["doubt"] * 2


def test_one_that_needs_a_lease_acts_only_while_it_has_one() -> None:
    clock, said = Clock(), list[str]()
    fence = Fence(clock)
    fence.lease(lambda: said.append("doubt"))
    assert not fence.is_sure() and fence.watched and not said
    fence.extend(clock() + 3.0)
    fence.extend(clock() + 2.0)
    clock.now += 3.0
    assert fence.is_sure() and not said
    clock.now += 0.1
    assert not fence.is_sure() and not fence.is_sure() and said == ["doubt"]
    fence.extend(clock() - 0.1)
    assert not fence.is_sure()
    fence.extend(clock() + 1.0)
    assert fence.is_sure() and said == ["doubt"]
