"""Tests that torch work runs in a bounded number of threads, and never in that of the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable

import pytest

from ps_service.execution.cores import usable_cores
from ps_service.execution.fair_queue import WorkItem
from ps_service.execution.workers import Worker, Workers
from ps_wire.runtime.scopes import waiting
from tests.ps_service.execution.pools import Pool
from tests.ps_service.threads import PATIENCE
from tests.waiting import until


@pytest.fixture
async def compute() -> AsyncIterator[Pool]:
    compute = Pool(threads=2)
    yield compute
    compute.close()


async def test_work_runs_in_another_thread(compute: Pool) -> None:
    name = await compute.run(lambda: threading.current_thread().name)
    assert name.startswith("ps-compute")


async def test_results_and_exceptions_come_back(compute: Pool) -> None:
    assert await compute.run(lambda: 42) == 42
    with pytest.raises(ZeroDivisionError):
        await compute.run(lambda: 1 // 0)


async def test_as_many_run_at_once_as_there_are_threads(compute: Pool) -> None:
    together = threading.Barrier(2)
    places = await asyncio.gather(*(compute.run(lambda: together.wait(PATIENCE)) for _ in range(2)))
    assert sorted(places) == [0, 1]


async def test_no_more_run_at_once_than_there_are_threads(compute: Pool) -> None:
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


async def test_the_thread_that_worked_last_works_next() -> None:
    compute = Pool(threads=4)
    gate = threading.Barrier(5)
    ran = [asyncio.create_task(compute.run(lambda: (gate.wait(PATIENCE), threading.get_ident())[1])) for _ in range(4)]
    await asyncio.to_thread(gate.wait, PATIENCE)
    all_threads = set(await asyncio.gather(*ran))
    assert len(all_threads) == 4
    await until(lambda: len(compute._idle) == 4)
    last = await compute.run(threading.get_ident)
    for _ in range(20):
        # It is idle again once it has taken the lock, which it does after it has delivered its result.
        await until(lambda: len(compute._idle) == 4)
        assert compute._idle[-1].thread.ident == last
        assert await compute.run(threading.get_ident) == last
    compute.close()


async def test_the_loop_goes_on_meanwhile(compute: Pool) -> None:
    gate = threading.Event()
    task = asyncio.create_task(compute.run(lambda: gate.wait(PATIENCE)))
    assert await compute.run(lambda: "through") == "through"
    gate.set()
    assert await task


async def test_work_whose_caller_has_gone_is_not_begun(compute: Pool) -> None:
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


async def test_closing_waits_for_running_work() -> None:
    compute = Pool(threads=1)
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


async def test_closing_waits_no_longer_than_it_is_told(caplog: pytest.LogCaptureFixture) -> None:
    compute = Pool(threads=2)
    gate, begun = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        assert gate.wait(PATIENCE)

    task = asyncio.create_task(compute.run(work, WorkItem(what=lambda: "my.Net.forward")))
    await asyncio.to_thread(begun.wait, PATIENCE)
    await asyncio.to_thread(compute.close, 0.01)
    (record,) = caplog.records
    assert record.getMessage().endswith("1 of them still run my.Net.forward")
    gate.set()
    await task


def test_the_default_is_two_threads_per_core() -> None:
    compute = Pool()
    assert compute.threads == 2 * usable_cores()
    compute.close()


async def test_queued_counts_functions_that_wait_for_a_thread() -> None:
    compute = Pool(threads=1)
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


# Threads that wait, and threads that are lost


class Held:
    """A function that holds its thread until it is let go."""

    def __init__(self) -> None:
        self.begun, self.let_go = asyncio.Event(), threading.Event()
        self._loop = asyncio.get_running_loop()

    def __call__(self) -> None:
        self._loop.call_soon_threadsafe(self.begun.set)
        assert self.let_go.wait(PATIENCE)

    async def hold(self, compute: Pool, of: bytes = b"", name: str = "") -> tuple[asyncio.Task[None], WorkItem]:
        """Begins to run in one of the threads."""
        item = WorkItem(of, what=lambda: name)
        task = asyncio.create_task(compute.run(self, item))
        async with asyncio.timeout(PATIENCE):
            await self.begun.wait()
        return task, item


async def gone(task: asyncio.Task[None]) -> None:
    """The caller does not wait any more."""
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.fixture
async def held() -> AsyncIterator[list[Held]]:
    made = [Held() for _ in range(8)]
    yield made
    for each in made:
        each.let_go.set()


async def settled(compute: Pool, lost: int) -> None:
    """Returns once so many threads are lost."""
    await until(lambda: compute.lost == lost, 0.001)


async def test_threads_that_are_lost_are_replaced(compute: Pool, held: list[Held]) -> None:
    for each in held[:6]:
        task, _ = await each.hold(compute)
        await gone(task)
    assert compute.lost == 6 and not compute.stalled
    assert await compute.run(lambda: 42) == 42
    together = threading.Barrier(2)
    await asyncio.gather(*(compute.run(lambda: together.wait(PATIENCE)) for _ in range(2)))


async def test_threads_that_are_too_many_go_when_lost_ones_come_back(compute: Pool, held: list[Held]) -> None:
    for each in held[:4]:
        task, _ = await each.hold(compute)
        await gone(task)
    assert await compute.run(lambda: 42) == 42
    assert len(compute._workers.all) > 2
    for each in held:
        each.let_go.set()
    await settled(compute, 0)
    async with asyncio.timeout(PATIENCE):
        while len(compute._workers.all) > 2:
            await compute.run(lambda: None)
    assert compute._workers.missing == 0


async def test_no_more_are_replaced_than_there_are_spare_ones(held: list[Held]) -> None:
    compute = Pool(threads=2, spare=1)
    told: list[bool] = []
    compute.when_stalled = told.append
    try:
        for each in held[:2]:
            task, _ = await each.hold(compute)
            await gone(task)
        assert not compute.stalled
        assert await compute.run(lambda: 42) == 42
        task, _ = await held[2].hold(compute)
        await gone(task)
        assert compute.stalled and compute.lost == 3
        waits = asyncio.create_task(compute.run(lambda: 43))
        await asyncio.sleep(0)
        assert compute.queued == 1 and told == [True]
        held[0].let_go.set()
        assert await waits == 43, "a thread that comes back takes up what waits"
        await asyncio.sleep(0)
        assert not compute.stalled and told == [True, False]
    finally:
        for each in held:
            each.let_go.set()
        await asyncio.to_thread(compute.close)


async def test_a_piece_that_is_reclaimed_counts_again(compute: Pool, held: list[Held]) -> None:
    task, item = await held[0].hold(compute)
    compute.abandon(item)
    assert compute.lost == 1
    compute.reclaim(item)
    assert compute.lost == 0
    held[0].let_go.set()
    await task


async def test_an_abandoned_lasting_item_counts_as_lost_when_it_runs(held: list[Held]) -> None:
    compute = Pool(threads=1)
    task, _ = await held[0].hold(compute)
    lasting, passing = WorkItem(lasting=True), WorkItem()
    ran = threading.Event()

    def last() -> Callable[[], None]:
        ran.set()
        held[1]()
        return lambda: None

    compute.submit(lambda: lambda: None, passing)
    compute.submit(last, lasting)
    for item in (lasting, passing):
        compute.abandon(item)
    assert compute.lost == 0
    held[0].let_go.set()
    await task
    await asyncio.to_thread(ran.wait, PATIENCE)
    assert compute.lost == 1
    held[1].let_go.set()
    await settled(compute, 0)
    await asyncio.to_thread(compute.close)


async def test_one_trainer_cannot_lose_all_threads(held: list[Held]) -> None:
    compute = Pool(threads=2, spare=4)
    for each in held[:2]:
        assert not compute.has_lost_enough(b"one")
        task, _ = await each.hold(compute, b"one")
        await gone(task)
    assert compute.has_lost_enough(b"one") and not compute.has_lost_enough(b"other")
    for each in held:
        each.let_go.set()
    await settled(compute, 0)
    assert not compute.has_lost_enough(b"one")
    await asyncio.to_thread(compute.close)


def test_nor_can_the_trainers_of_one_group() -> None:
    workers, worker = Workers(2, 4), Worker()
    worker.item = WorkItem(b"one", group="team")
    workers.add(worker)
    workers.lose(worker)
    assert workers.lost == {"team": 1}
    workers.regain(worker, worker.item)
    assert not workers.lost


async def test_a_function_that_holds_threads_for_nothing_is_named_once(
    compute: Pool, held: list[Held], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("ps_service.execution.thread_pool.REPORT_SECONDS", 0.0)
    for each, name in zip(held[:4], ["my.Net.forward", "my.Net.forward", "", "my.prepare"], strict=False):
        task, _ = await each.hold(compute, name=name)
        await gone(task)

    def said() -> list[str]:
        return [record.getMessage().split(" is still running")[0] for record in caplog.records]

    await until(lambda: len(said()) >= 3, 0.001)
    assert said() == ["my.Net.forward", "some work", "my.prepare"]


async def test_abandoned_work_that_ends_soon_is_not_logged(
    compute: Pool, held: list[Held], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    task, _ = await held[0].hold(compute)
    reports: list[Callable[[], None]] = []
    monkeypatch.setattr(compute, "later", lambda seconds, report: reports.append(report))
    await gone(task)
    held[0].let_go.set()
    await settled(compute, 0)
    (report,) = reports
    report()
    assert not caplog.records


async def test_administration_is_answered_while_everything_else_is_held(held: list[Held]) -> None:
    compute = Pool(threads=1)
    task, _ = await held[0].hold(compute)
    assert await compute.run(lambda: 42, WorkItem(apart=True)) == 42
    held[0].let_go.set()
    await task
    await asyncio.to_thread(compute.close)


async def test_waiting_does_not_count_however_deep_it_is(held: list[Held]) -> None:
    compute = Pool(threads=1)

    def waits() -> None:
        with waiting, waiting:
            held[0]()

    task = asyncio.create_task(compute.run(waits))
    await held[0].begun.wait()
    assert compute.waiting == 1
    assert await compute.run(lambda: 42) == 42
    held[0].let_go.set()
    await task
    assert compute.waiting == 0
    await asyncio.to_thread(compute.close)


async def test_time_spent_waiting_is_not_charged(held: list[Held], monkeypatch: pytest.MonkeyPatch) -> None:
    compute, now = Pool(threads=1), 100.0
    monkeypatch.setattr("time.perf_counter", lambda: now)
    item = WorkItem(b"one")

    def waits() -> None:
        with waiting:
            held[0]()

    task = asyncio.create_task(compute.run(waits, item))
    await held[0].begun.wait()
    now += 0.3
    held[0].let_go.set()
    await task
    await compute.run(lambda: None)
    assert item.trainer_queue is not None and item.trainer_queue.estimate == 0.0
    await asyncio.to_thread(compute.close)
