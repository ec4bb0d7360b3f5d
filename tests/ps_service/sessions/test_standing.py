"""Tests when an owner doubts that it may act for its name."""

from __future__ import annotations

from ps_service.sessions.standing import BEAT_SECONDS, PATIENCE_SECONDS, Standing
from tests.ps_service.clock import Clock


def watched() -> tuple[Standing, Clock, list[str]]:
    clock, doubts = Clock(), list[str]()
    standing = Standing(clock)
    standing.watch(lambda: doubts.append("doubt"))
    return standing, clock, doubts


def test_one_that_nobody_can_replace_is_always_sure() -> None:
    clock = Clock()
    standing = Standing(clock)
    clock.now += 1e9
    assert standing.is_sure() and not standing.watched


def test_while_beats_come_it_is_sure() -> None:
    standing, clock, doubts = watched()
    for _ in range(20):
        clock.now += BEAT_SECONDS
        standing.beat()
        assert standing.is_sure()
    clock.now += PATIENCE_SECONDS
    assert standing.is_sure() and not doubts


def test_without_a_beat_it_doubts_once_and_late_beats_change_nothing() -> None:
    standing, clock, doubts = watched()
    clock.now += PATIENCE_SECONDS + 0.1
    standing.beat()  # the timer may come before the requests
    assert not standing.is_sure() and standing.is_doubted
    standing.beat()
    assert not standing.is_sure() and doubts == ["doubt"]
    standing.settle()
    assert standing.is_sure() and not standing.is_doubted
    clock.now += PATIENCE_SECONDS + 0.1
    assert not standing.is_sure() and doubts == ["doubt"] * 2


def test_one_that_needs_a_lease_acts_only_while_it_has_one() -> None:
    clock, said = Clock(), list[str]()
    standing = Standing(clock)
    standing.lease(lambda: said.append("doubt"))
    assert not standing.is_sure() and standing.watched and not said
    standing.extend(clock() + 3.0)
    standing.extend(clock() + 2.0)
    clock.now += 3.0
    assert standing.is_sure() and not said
    clock.now += 0.1
    assert not standing.is_sure() and not standing.is_sure() and said == ["doubt"]
    standing.extend(clock() - 0.1)
    assert not standing.is_sure()
    standing.extend(clock() + 1.0)
    assert standing.is_sure() and said == ["doubt"]
