"""Tests that memory is given back after some time without large messages, and not before."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

from ps_wire.connections.buffers import RECEIVED, Reclaimer, reclaim
from ps_wire.limits import MIB
from ps_wire.runtime.threads import COPIES

PATIENCE = 60.0


async def test_memory_is_reclaimed_after_the_last_use_and_some_times_later(monkeypatch: pytest.MonkeyPatch) -> None:
    start = COPIES.start
    now, timers = 100.0, list[tuple[float, Callable[[], None]]]()
    loop, done = asyncio.get_running_loop(), asyncio.Event()

    def call_later(seconds: float, look: Callable[[int], None], turn: int) -> object:
        timers.append((now + seconds, partial(look, turn)))
        return look

    def reached(at: float) -> None:
        """Lets time go by."""
        nonlocal now
        while timers and timers[0][0] <= at:
            now, look = timers.pop(0)
            look()
        now = at

    with monkeypatch.context() as patch:
        patch.setattr("ps_wire.connections.buffers.time", SimpleNamespace(monotonic=lambda: now))
        patch.setattr(loop, "call_later", call_later)
        reclaimed: list[float] = []
        asked: list[float] = []
        patch.setattr(COPIES, "start", lambda work: (asked.append(now), start(work)))
        reclaimer = Reclaimer(lambda: (reclaimed.append(now), loop.call_soon_threadsafe(done.set)), seconds=5.0)
        for _ in range(20):
            reclaimer.used()
            reached(now + 1.0)
        reached(now + 3.9)
        assert not reclaimed and len(timers) == 1
        last = now - 4.9
        reached(now + 30.0)  # twice
        for _ in range(2):  # once more, as if it had not been used before
            reclaimer.used()
            reached(now + 3.0)
        last_again = now - 3.0
        reached(now + 1000.0)
        assert not timers
    async with asyncio.timeout(PATIENCE):
        while len(reclaimed) < 6:
            await done.wait()
            done.clear()
    times = [last + 5, last + 15, *(last_again + each for each in (5, 15, 35, 75))]
    assert asked == pytest.approx(times)


def test_a_loop_that_ended_does_not_end_it() -> None:
    done = threading.Event()
    reclaimer = Reclaimer(done.set, seconds=0.01)

    async def use() -> None:
        reclaimer.used()

    async def use_and_wait() -> None:
        async with asyncio.timeout(PATIENCE):
            while not done.is_set():
                reclaimer.used()
                await asyncio.sleep(0.05)

    asyncio.run(use())
    asyncio.run(use_and_wait())
    assert done.is_set()


def test_buffers_and_free_memory_of_malloc_go_back_to_the_system() -> None:
    process = psutil.Process()
    reclaim()
    before = process.memory_info().rss
    buffer = RECEIVED.take(64 * MIB)
    buffer[:] = 1
    del buffer
    # Blocks that malloc keeps, because one that stays lies behind them.
    blocks = [np.ones(MIB // 16, np.uint8) for _ in range(1600)]
    stays = blocks.pop()
    blocks.clear()
    assert RECEIVED.kept >= 64 * MIB
    assert process.memory_info().rss - before > 100 * MIB
    reclaim()
    assert RECEIVED.kept == 0
    assert process.memory_info().rss - before < 40 * MIB
    assert stays.all()
