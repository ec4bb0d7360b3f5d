"""Locks that are held for long: who waits for one says so."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from ps_wire.runtime.locks import ReportingLock
from ps_wire.runtime.scopes import waiting
from tests.ps_service.threads import PATIENCE, Worker


@pytest.fixture
def said() -> Iterator[list[str]]:
    """What this thread has said of its waits."""
    heard: list[str] = []
    waiting.begins, waiting.ends = lambda: heard.append("begins"), lambda: heard.append("ends")
    yield heard
    waiting.begins = waiting.ends = None


class Holder:
    """Another thread that has a lock."""

    def __init__(self, lock: ReportingLock) -> None:
        self._has, self.let_go = threading.Event(), threading.Event()
        self._worker = Worker(lambda: self._hold(lock))
        assert self._has.wait(PATIENCE)

    def _hold(self, lock: ReportingLock) -> None:
        with lock:
            self._has.set()
            assert self.let_go.wait(PATIENCE)


def test_a_free_lock_is_taken_without_a_word(said: list[str]) -> None:
    lock = ReportingLock()
    with lock, lock:
        assert not lock.locked(), "it is this thread's own"
        assert Worker(lock.locked).result()
    assert not said and not Worker(lock.locked).result()


def test_a_waiting_thread_reports_the_wait(said: list[str]) -> None:
    lock = ReportingLock()
    holder = Holder(lock)
    waiting.begins = lambda: (said.append("begins"), holder.let_go.set())  # type: ignore[assignment, func-returns-value]
    with lock:
        assert said == ["begins", "ends"]


def test_a_thread_that_must_not_wait_does_not(said: list[str]) -> None:
    lock = ReportingLock()
    holder = Holder(lock)
    assert not lock.acquire(blocking=False)
    holder.let_go.set()
    assert not said


def test_a_thread_of_no_pool_just_waits() -> None:
    lock = ReportingLock()
    holder = Holder(lock)
    waiter = Worker(lambda: lock.acquire())
    holder.let_go.set()
    assert waiter.result()
