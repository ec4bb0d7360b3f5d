"""Tests that work that waits never takes the threads of the work that it waits for."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import os
import threading
from collections.abc import Callable

import pytest

from ps_wire.runtime.threads import BLOCKING, COPIES, Threads, read_on_loop

PATIENCE = 60.0


async def test_results_and_errors_of_a_function_are_returned() -> None:
    assert await COPIES.run(divmod, 7, 3) == (2, 1)
    with pytest.raises(ZeroDivisionError):
        await COPIES.run(divmod, 7, 0)


async def test_a_function_runs_in_another_thread_in_the_caller_s_context() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="")
    variable.set("mine")

    def look() -> tuple[str, bool]:
        return variable.get(), threading.current_thread() is threading.main_thread()

    assert await BLOCKING.run(look) == ("mine", False)


async def test_hundreds_may_wait_for_each_other() -> None:
    together = threading.Barrier(300)
    async with asyncio.timeout(PATIENCE):
        places = await asyncio.gather(*(BLOCKING.run(together.wait, PATIENCE) for _ in range(300)))
    assert sorted(places) == list(range(300))


async def test_threads_are_used_again_and_no_more_than_agreed() -> None:
    few = Threads("few", 2)
    names = await asyncio.gather(*(few.run(lambda: threading.current_thread().name) for _ in range(50)))
    assert set(names) <= {"few_0", "few_1"}


async def test_blocked_threads_of_the_program_do_not_matter() -> None:
    loop, end = asyncio.get_running_loop(), threading.Event()
    blocked = [loop.run_in_executor(None, end.wait, PATIENCE) for _ in range(4 * (os.cpu_count() or 1) + 32)]
    try:
        async with asyncio.timeout(PATIENCE):
            assert await BLOCKING.run(int, "3") == await COPIES.run(int, "3") == 3
    finally:
        end.set()
        await asyncio.gather(*blocked)


async def test_a_forked_child_gets_threads_that_live(monkeypatch: pytest.MonkeyPatch) -> None:
    few = Threads("few", 1)
    before = await few.run(threading.get_ident)
    parent = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: parent + 1)
    assert await few.run(threading.get_ident) != before


async def test_what_is_read_on_the_loop_is_returned_or_raised() -> None:
    loop = asyncio.get_running_loop()
    assert await asyncio.to_thread(read_on_loop, loop, threading.current_thread, PATIENCE) is threading.current_thread()
    for error in (ZeroDivisionError, TimeoutError, RuntimeError):
        with pytest.raises(error, match="mine"):
            await asyncio.to_thread(read_on_loop, loop, _raises(error), PATIENCE)


def test_a_loop_that_never_comes_to_it_leaves_nothing_behind() -> None:
    read: list[None] = []
    loop = asyncio.new_event_loop()
    with pytest.raises(TimeoutError):
        read_on_loop(loop, lambda: read.append(None), 0.01)
    loop.run_until_complete(asyncio.sleep(0))
    assert not read
    with pytest.raises(TimeoutError):
        read_on_loop(loop, lambda: read.append(None), 0.01)
    loop.close()
    with pytest.raises(TimeoutError, match="closed"):
        read_on_loop(loop, lambda: read.append(None), PATIENCE)
    gc.collect()


def _raises(kind: type[Exception]) -> Callable[[], None]:
    def read() -> None:
        raise kind("mine")

    return read
