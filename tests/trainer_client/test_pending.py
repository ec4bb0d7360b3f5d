"""Tests that all waiting tasks and threads get the same result, in whatever way it arrives."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import Any

import pytest

from ps_wire.errors import CancelledCallError, ClosedError, DeadlineExceededError, UnknownNameError
from trainer_client.pending import Joined, Pending


def made(cancelled: list[str] | None = None) -> Pending[Any]:
    """A pending result of a client that lives on the running loop."""
    return Pending(asyncio.get_running_loop(), lambda: (cancelled if cancelled is not None else []).append("told"))


def raises(error: Exception) -> Callable[[], Any]:
    def outcome() -> Any:
        raise error

    return outcome


# Waiting


async def test_a_result_that_is_there_is_had_at_once() -> None:
    pending = made()
    pending.resolve(lambda: 42)
    assert pending.done()
    assert await pending == await pending == pending.wait() == 42


async def test_a_later_result_wakes_the_task_that_awaits_it() -> None:
    pending = made()
    waiting = [asyncio.create_task(_awaited(pending)) for _ in range(3)]
    await asyncio.sleep(0)
    assert not pending.done()
    pending.resolve(lambda: "answer")
    assert await asyncio.gather(*waiting) == ["answer"] * 3


async def test_threads_wait_for_it_too() -> None:
    pending = made()
    waiting = [asyncio.create_task(asyncio.to_thread(pending.wait, 20)) for _ in range(3)]
    pending.resolve(lambda: "answer")
    assert await asyncio.gather(*waiting) == ["answer"] * 3


async def test_other_event_loops_may_await_it() -> None:
    pending = made()
    begun = threading.Event()

    async def elsewhere() -> Any:
        asyncio.get_running_loop().call_soon(begun.set)
        return await pending

    other = asyncio.create_task(asyncio.to_thread(lambda: asyncio.run(elsewhere())))
    await asyncio.to_thread(begun.wait, 20)
    pending.resolve(lambda: "answer")
    assert await other == "answer"


async def test_many_are_gathered() -> None:
    pending = [made() for _ in range(5)]
    for number, each in enumerate(reversed(pending)):
        each.resolve(lambda number=number: number)
    assert await asyncio.gather(*pending) == [4, 3, 2, 1, 0]


async def test_an_error_is_raised_for_everybody() -> None:
    pending = made()
    pending.resolve(raises(UnknownNameError("unknown")))
    for _ in range(2):
        with pytest.raises(UnknownNameError, match="unknown"):
            await pending
        with pytest.raises(UnknownNameError, match="unknown"):
            pending.wait()


async def test_the_outcome_is_computed_once_in_a_waiting_thread() -> None:
    pending, computed = made(), []

    def outcome() -> str:
        computed.append(threading.current_thread())
        return "answer"

    pending.resolve(outcome)
    assert computed == [], "not in the thread that brings the answer"
    assert await asyncio.to_thread(pending.wait) == await pending == "answer"
    assert len(computed) == 1
    assert computed[0] is not threading.current_thread()


async def test_none_is_a_result() -> None:
    pending = made()
    pending.resolve(lambda: None)
    assert await pending is None
    assert pending.wait() is None


async def test_the_first_answer_counts() -> None:
    pending = made()
    pending.resolve(lambda: "first")
    pending.resolve(raises(UnknownNameError("second")))
    assert await pending == "first"


# What is refused


async def test_waiting_in_the_clients_own_loop_is_refused() -> None:
    pending = made()
    with pytest.raises(RuntimeError, match="use await"):
        pending.wait()
    pending.resolve(lambda: 1)
    assert pending.wait() == 1


async def test_waiting_may_have_an_end_and_the_call_goes_on() -> None:
    pending, cancelled = made(told := []), told
    with pytest.raises(DeadlineExceededError, match=r"no answer within 0\.01 s; the call goes on"):
        await asyncio.to_thread(pending.wait, 0.01)
    assert not pending.done()
    assert cancelled == []
    pending.resolve(lambda: "late")
    assert await pending == "late"


async def test_a_pending_result_has_no_truth_value() -> None:
    with pytest.raises(TypeError, match="await it, or call wait"):
        bool(made())


async def test_repr_shows_the_state() -> None:
    pending = made()
    assert repr(pending) == "<Pending on its way>"
    pending.resolve(lambda: 1)
    assert repr(pending) == "<Pending done>"


# Cancelling


async def test_cancelling_reaches_the_owner_and_the_waiting_tasks() -> None:
    pending = made(told := [])
    task, thread = asyncio.create_task(_awaited(pending)), asyncio.create_task(asyncio.to_thread(pending.wait, 20))
    await asyncio.sleep(0)
    pending.cancel()
    for waiting in (task, thread):
        with pytest.raises(CancelledCallError, match="the owner may have run it all the same"):
            await waiting
    assert told == ["told"]


async def test_cancelling_the_task_that_awaits_cancels_the_call() -> None:
    pending = made(told := [])
    task = asyncio.create_task(_awaited(pending))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert told == ["told"]
    with pytest.raises(CancelledCallError):
        await pending


async def test_a_timeout_around_it_cancels_the_call() -> None:
    pending = made(told := [])
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await pending
    assert told == ["told"]


async def test_cancelling_a_finished_call_does_nothing() -> None:
    pending = made(told := [])
    pending.resolve(lambda: 1)
    pending.cancel()
    assert await pending == 1
    assert told == []


async def test_cancelling_twice_tells_once() -> None:
    pending = made(told := [])
    pending.cancel()
    pending.cancel()
    assert told == ["told"]


# Coroutines of the client


async def test_a_coroutine_runs_at_once_on_its_loop() -> None:
    started = asyncio.Event()

    async def work() -> str:
        started.set()
        return "result"

    pending = Pending.run(asyncio.get_running_loop(), work())
    assert await pending == "result"
    assert started.is_set()


async def test_a_coroutine_may_be_started_from_any_thread() -> None:
    loop = asyncio.get_running_loop()

    async def work() -> bool:
        return asyncio.get_running_loop() is loop

    assert await asyncio.to_thread(lambda: Pending.run(loop, work()).wait(20))


async def test_an_exception_of_a_coroutine_is_raised() -> None:
    async def work() -> None:
        raise UnknownNameError("unknown")

    with pytest.raises(UnknownNameError, match="unknown"):
        await Pending.run(asyncio.get_running_loop(), work())


async def test_cancelling_stops_the_coroutine() -> None:
    begun, stopped = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    pending = Pending.run(asyncio.get_running_loop(), work())
    await begun.wait()
    pending.cancel()
    with pytest.raises(CancelledCallError):
        await pending
    async with asyncio.timeout(50):
        await stopped.wait()


async def test_a_coroutine_that_was_cancelled_before_it_began_never_begins() -> None:
    loop, ran = asyncio.get_running_loop(), []

    async def work() -> None:
        ran.append("ran")

    def begin_and_cancel() -> Pending[None]:
        pending = Pending.run(loop, work())
        pending.cancel()
        return pending

    thread = threading.Thread(target=lambda: results.append(begin_and_cancel()))
    results: list[Pending[None]] = []
    thread.start()
    thread.join(20)  # the loop does not turn meanwhile
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    with pytest.raises(CancelledCallError):
        await results[0]
    assert ran == []


async def test_a_coroutine_that_the_client_stops_says_that_it_was_closed() -> None:
    begun, work_task = asyncio.Event(), []

    async def work() -> None:
        work_task.append(asyncio.current_task())
        begun.set()
        await asyncio.Event().wait()

    pending = Pending.run(asyncio.get_running_loop(), work())
    await begun.wait()
    work_task[0].cancel()
    with pytest.raises(ClosedError, match="the client was closed"):
        await pending


def test_a_coroutine_for_a_loop_that_is_closed_says_so() -> None:
    loop = asyncio.new_event_loop()
    loop.close()

    async def work() -> None: ...

    with pytest.raises(ClosedError, match="this client is closed, and so is its event loop"):
        Pending.run(loop, work())


# Functions in a thread


def nothing() -> None:
    """For what cannot be told that it was given up."""


async def test_a_function_runs_in_another_thread_in_the_callers_context() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")
    variable.set("mine")

    def work(number: int) -> tuple[int, str, bool]:
        return number, variable.get(), threading.current_thread() is threading.main_thread()

    assert await Pending.in_thread(asyncio.get_running_loop(), work, 7, cancel=nothing) == (7, "mine", False)


async def test_an_exception_of_a_function_is_raised() -> None:
    pending: Pending[int] = Pending.in_thread(asyncio.get_running_loop(), int, "seven", cancel=nothing)
    with pytest.raises(ValueError, match="seven"):
        await pending


async def test_a_function_that_has_begun_goes_on_when_it_is_given_up() -> None:
    begun, go, ended, told = threading.Event(), threading.Event(), threading.Event(), []

    def work() -> None:
        begun.set()
        go.wait(20)
        ended.set()

    pending = Pending.in_thread(asyncio.get_running_loop(), work, cancel=lambda: told.append("told"))
    await asyncio.to_thread(begun.wait, 20)
    pending.cancel()
    go.set()
    with pytest.raises(CancelledCallError):
        await pending
    assert await asyncio.to_thread(ended.wait, 20)
    assert told == ["told"]


# Several together


async def test_the_results_of_several_come_in_their_order() -> None:
    parts = {key: made() for key in "abc"}
    whole = Joined(asyncio.get_running_loop(), parts.values(), tuple)
    for key in "cab":
        assert not whole.done()
        parts[key].resolve(lambda key=key: key.upper())
    assert await whole == ("A", "B", "C")


async def test_several_are_waited_for_before_the_first_error_is_raised() -> None:
    parts = {key: made() for key in "abc"}
    whole = Joined(asyncio.get_running_loop(), parts.values(), tuple)
    parts["c"].resolve(raises(ClosedError("the third")))
    parts["b"].resolve(raises(UnknownNameError("the second")))
    assert not whole.done()
    parts["a"].resolve(lambda: 1)
    with pytest.raises(UnknownNameError, match="the second"):
        await whole


async def test_giving_up_several_gives_up_each() -> None:
    told: list[str] = []
    Joined(asyncio.get_running_loop(), [made(told), made(told)], tuple).cancel()
    assert told == ["told"] * 2


async def test_none_at_all_is_done_at_once() -> None:
    assert await Joined(asyncio.get_running_loop(), [], tuple) == ()


async def _awaited(pending: Pending[Any]) -> Any:
    return await pending
