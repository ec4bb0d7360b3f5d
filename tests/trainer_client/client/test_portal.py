"""Tests that all blocking clients of a process share one background loop, which ends with the last of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from ps_wire.errors import ClosedError, UnknownNameError
from tests.ps_service.threads import PATIENCE, Worker
from trainer_client.client.portal import Portal
from trainer_client.pending import Pending


@pytest.fixture
def portal() -> Iterator[Portal]:
    portal = Portal.acquire()
    yield portal
    portal.release()


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "trainer-client"]


def test_a_coroutine_runs_in_the_background(portal: Portal) -> None:
    async def work() -> tuple[str, bool]:
        return threading.current_thread().name, asyncio.get_running_loop() is portal.loop

    assert portal.run(work()) == ("trainer-client", True)


def test_an_exception_of_a_coroutine_is_raised(portal: Portal) -> None:
    async def work() -> None:
        raise UnknownNameError("unknown")

    with pytest.raises(UnknownNameError, match="unknown"):
        portal.run(work())


def test_all_users_share_one_loop_and_one_thread(portal: Portal) -> None:
    other = Portal.acquire()
    assert other is portal
    assert len(threads()) == 1
    other.release()
    assert len(threads()) == 1
    assert not portal.loop.is_closed()


def test_the_portal_ends_with_its_last_user() -> None:
    first, second = Portal.acquire(), Portal.acquire()
    first.release()
    assert threads()
    second.release()
    assert threads() == []
    assert first.loop.is_closed()


def test_the_next_user_gets_a_new_portal() -> None:
    before = Portal.acquire()
    before.release()
    after = Portal.acquire()
    try:
        assert after is not before
        assert after.run(asyncio.sleep(0, "works")) == "works"
    finally:
        after.release()


def test_threads_that_ask_together_get_the_same() -> None:
    barrier = threading.Barrier(4)

    def use() -> int:
        barrier.wait(PATIENCE)
        portal = Portal.acquire()
        barrier.wait(PATIENCE)
        try:
            assert portal.run(asyncio.sleep(0, "works")) == "works"
            return id(portal)
        finally:
            portal.release()

    assert len({worker.result() for worker in [Worker(use) for _ in range(4)]}) == 1
    assert threads() == []


def test_coroutines_of_many_threads_run_side_by_side(portal: Portal) -> None:
    parties = 3
    arrived, all_there = [], asyncio.Event()

    async def meet() -> bool:
        arrived.append(1)
        if len(arrived) == parties:
            all_there.set()
        return await all_there.wait()

    assert all(worker.result() for worker in [Worker(lambda: portal.run(meet())) for _ in range(parties)])


def test_a_blocking_call_in_its_own_thread_is_refused(portal: Portal) -> None:
    async def work() -> str:
        with pytest.raises(RuntimeError, match="would wait for itself"):
            portal.run(asyncio.sleep(0))
        return "refused"

    assert portal.run(work()) == "refused"


def test_tasks_that_run_at_the_end_get_a_closed_error() -> None:
    portal = Portal.acquire()
    cleaned_up = threading.Event()

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned_up.set()

    pending = Pending.run(portal.loop, forever())
    waiting = Worker(pending.wait)
    portal.run(asyncio.sleep(0))
    portal.release()
    with pytest.raises(ClosedError, match="the client was closed while this was running"):
        waiting.result()
    assert cleaned_up.is_set()
