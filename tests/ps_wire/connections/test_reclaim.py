"""Tests that memory is given back after some time without large messages, and not before."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

from ps_wire.connections.buffers import RECEIVED, Reclaimer, reclaim
from ps_wire.limits import MIB

PATIENCE = 20.0


async def test_memory_is_reclaimed_once_after_the_last_use(monkeypatch: pytest.MonkeyPatch) -> None:
    now, timers = 100.0, list[tuple[float, Callable[[], None]]]()
    loop, done = asyncio.get_running_loop(), asyncio.Event()

    def call_later(seconds: float, look: Callable[[], None]) -> object:
        timers.append((now + seconds, look))
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
        reclaimer = Reclaimer(lambda: (reclaimed.append(now), loop.call_soon_threadsafe(done.set)), seconds=5.0)
        for _ in range(20):
            reclaimer.used()
            reached(now + 1.0)
        reached(now + 3.9)
        assert not reclaimed and len(timers) == 1
        reached(now + 0.2)
        assert not timers
    async with asyncio.timeout(PATIENCE):
        await done.wait()
    assert len(reclaimed) == 1


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
