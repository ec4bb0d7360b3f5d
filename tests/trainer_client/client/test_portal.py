"""Tests that all blocking clients of a process share one background loop, which ends with the interpreter."""

from __future__ import annotations

import asyncio
import concurrent.futures
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from ps_wire.errors import ClosedError, UnknownNameError
from tests.conftest import ROOT
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


def test_the_next_user_gets_the_same_portal() -> None:
    first = Portal.acquire()
    first.release()
    (thread,) = threads()
    for _ in range(20):
        portal = Portal.acquire()
        try:
            assert portal is first and portal.run(asyncio.sleep(0, "works")) == "works"
        finally:
            portal.release()
    assert threads() == [thread]


def test_a_portal_that_has_ended_refuses_its_users() -> None:
    first, second = Portal.acquire(), Portal.acquire()
    second.release()
    left = Pending.run(first.loop, asyncio.sleep(1000))
    Portal.end()
    assert threads() == [] and first.loop.is_closed()
    Portal.end()
    with pytest.raises(ClosedError):
        left.wait()
    with pytest.raises(ClosedError, match="is closed, and so is its event loop"):
        first.run(asyncio.sleep(0))
    first.release()
    after = Portal.acquire()
    try:
        assert after is not first and after.run(asyncio.sleep(0, "works")) == "works"
    finally:
        after.release()


def test_the_exit_does_not_wait_for_ever_for_a_loop_that_is_held_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer_client.client.portal._END_SECONDS", 0.01)
    portal, may_go_on = Portal.acquire(), threading.Event()
    portal.loop.call_soon_threadsafe(may_go_on.wait)
    (thread,) = threads()
    Portal.end()
    assert not portal.loop.is_closed()
    may_go_on.set()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    portal.loop.close()


@pytest.mark.parametrize("ends_early", [False, True])
def test_ctrl_c_cancels_what_is_to_end_early(portal: Portal, ends_early: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, over, may_end = threading.Event(), threading.Event(), asyncio.Event()
    outcome: list[str] = []

    async def work() -> None:
        begun.set()
        try:
            await may_end.wait()
            outcome.append("ended")
        except asyncio.CancelledError:
            outcome.append("cancelled")
            raise
        finally:
            over.set()

    def interrupted(_: object) -> None:
        assert begun.wait(PATIENCE)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(concurrent.futures.Future, "result", interrupted)
        portal.run(work(), ends_early=ends_early)
    portal.loop.call_soon_threadsafe(may_end.set)
    assert over.wait(PATIENCE)
    assert outcome == ["cancelled" if ends_early else "ended"]


def test_the_last_user_does_not_cancel_what_the_next_one_begins() -> None:
    """A user that comes while the tasks of the last one still end keeps its own."""
    last = Portal.acquire()
    ends, may_end = threading.Event(), asyncio.Event()

    async def slow_to_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ends.set()
            await may_end.wait()

    left = Pending.run(last.loop, slow_to_end())
    last.run(asyncio.sleep(0))
    releasing = Worker(last.release)
    assert ends.wait(PATIENCE)
    portal = Portal.acquire()
    try:
        assert portal.run(asyncio.sleep(0, "works")) == "works"
        portal.loop.call_soon_threadsafe(may_end.set)
        releasing.result()
        assert left.done() and portal.run(asyncio.sleep(0, "works")) == "works"
    finally:
        portal.release()
    with pytest.raises(ClosedError):
        left.wait()


PROGRAM = """
import asyncio, atexit, os, sys, threading, types
# Without its package, which imports torch.
sys.modules["trainer_client"] = types.ModuleType("trainer_client")
sys.modules["trainer_client"].__path__ = ["trainer_client"]
atexit.register(lambda: print("ended", here.loop.is_closed()))  # the last, because it is the first here
from trainer_client.client.portal import Portal

def use():
    portal = Portal.acquire()
    assert portal.run(asyncio.sleep(0, "works")) == "works"
    portal.release()
    return portal

here = use()
atexit.register(use)
if not os.fork():
    assert [each.name for each in threading.enumerate()] == ["MainThread"]
    own = use()
    assert own is not here and use() is own
    Portal.end()
    os._exit(3 if own.loop.is_closed() else 4)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 3
assert use() is here
if {is_open}:
    Portal.acquire().loop.call_soon_threadsafe(here.loop.create_task, asyncio.sleep(1000))
atexit.register(lambda: print("ended", here.loop.is_closed()))
"""


@pytest.mark.parametrize("is_open", [False, True])
def test_it_ends_in_order_with_the_interpreter_and_in_a_forked_child(is_open: bool) -> None:
    ended = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "-c", PROGRAM.format(is_open=is_open)],
        cwd=ROOT, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "ended False\nended True\n", "")


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
    assert len(threads()) == 1


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
