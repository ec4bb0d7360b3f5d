"""Compute: torch work runs in a bounded number of threads, never in the event loop's."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from contextvars import ContextVar

import pytest

from ps_service.engine.compute import Compute
from tests.ps_service.threads import PATIENCE

marker: ContextVar[str] = ContextVar("marker", default="nobody")


@pytest.fixture
async def compute() -> AsyncIterator[Compute]:
    compute = Compute(threads=2)
    yield compute
    compute.close()


async def test_work_runs_in_another_thread(compute: Compute) -> None:
    name = await compute.run(lambda: threading.current_thread().name)
    assert name.startswith("ps-compute")


async def test_results_and_exceptions_come_back(compute: Compute) -> None:
    assert await compute.run(lambda: 42) == 42
    with pytest.raises(ZeroDivisionError):
        await compute.run(lambda: 1 // 0)


async def test_as_many_run_at_once_as_there_are_threads(compute: Compute) -> None:
    together = threading.Barrier(2)
    await asyncio.gather(*(compute.run(lambda: together.wait(PATIENCE)) for _ in range(2)))


async def test_no_more_run_at_once_than_there_are_threads(compute: Compute) -> None:
    gate, both = threading.Event(), threading.Barrier(3)
    running: list[int] = []

    def work() -> int:
        running.append(1)
        if len(running) <= 2:
            both.wait(PATIENCE)
        assert gate.wait(PATIENCE)
        return len(running)

    tasks = [asyncio.create_task(compute.run(work)) for _ in range(5)]
    await asyncio.to_thread(both.wait, PATIENCE)
    assert len(running) == 2
    gate.set()
    await asyncio.gather(*tasks)
    assert len(running) == 5


async def test_the_loop_goes_on_meanwhile(compute: Compute) -> None:
    gate = threading.Event()
    task = asyncio.create_task(compute.run(lambda: gate.wait(PATIENCE)))
    assert await compute.run(lambda: "through") == "through"
    gate.set()
    assert await task


async def test_work_sees_the_context_variables_of_its_caller_and_keeps_its_own(compute: Compute) -> None:
    token = marker.set("caller")
    try:
        assert await compute.run(marker.get) == "caller"
        await compute.run(lambda: marker.set("work"))
        assert marker.get() == "caller"
    finally:
        marker.reset(token)
    assert await compute.run(marker.get) == "nobody"


async def test_work_whose_caller_has_gone_is_not_begun(compute: Compute) -> None:
    gate, begun = threading.Event(), threading.Barrier(3)

    def block() -> None:
        begun.wait(PATIENCE)
        assert gate.wait(PATIENCE)

    busy = [asyncio.create_task(compute.run(block)) for _ in range(2)]
    await asyncio.to_thread(begun.wait, PATIENCE)
    ran: list[str] = []
    waiting = asyncio.create_task(compute.run(lambda: ran.append("cancelled")))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    gate.set()
    await asyncio.gather(*busy)
    await compute.run(lambda: ran.append("after"))
    assert ran == ["after"]


async def test_closing_waits_for_what_runs() -> None:
    compute = Compute(threads=1)
    gate, begun = threading.Event(), threading.Event()
    finished: list[bool] = []

    def work() -> None:
        begun.set()
        assert gate.wait(PATIENCE)
        finished.append(True)

    task = asyncio.create_task(compute.run(work))
    await asyncio.to_thread(begun.wait, PATIENCE)
    closing = asyncio.create_task(asyncio.to_thread(compute.close))
    gate.set()
    await closing
    assert finished == [True]
    await task


def test_the_default_is_two_threads_per_core() -> None:
    compute = Compute()
    assert compute.threads == 2 * (os.cpu_count() or 1)
    compute.close()


async def test_it_tells_how_much_waits_for_a_thread() -> None:
    compute = Compute(threads=1)
    gate, begun = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        assert gate.wait(PATIENCE)

    assert compute.queued == 0
    running = asyncio.create_task(compute.run(work))
    await asyncio.to_thread(begun.wait, PATIENCE)
    waiting = [asyncio.create_task(compute.run(lambda: None)) for _ in range(3)]
    await asyncio.sleep(0)
    assert compute.queued == 3, "what runs does not wait"
    gate.set()
    await asyncio.gather(running, *waiting)
    assert compute.queued == 0
    compute.close()
