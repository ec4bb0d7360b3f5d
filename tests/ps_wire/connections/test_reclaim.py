"""Tests that memory is given back after some time without large messages, and not before."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import psutil

from ps_wire.connections.buffers import RECEIVED
from ps_wire.connections.reclaim import Reclaimer, reclaim
from ps_wire.limits import MIB

PATIENCE = 20.0


async def test_memory_is_reclaimed_once_after_the_last_use() -> None:
    times: list[float] = []
    loop, done = asyncio.get_running_loop(), asyncio.Event()

    def note() -> None:
        times.append(loop.time())
        loop.call_soon_threadsafe(done.set)

    reclaimer = Reclaimer(note, seconds=0.05)
    last = 0.0
    for _ in range(20):
        last = loop.time()
        reclaimer.used()
        await asyncio.sleep(0.001)
    async with asyncio.timeout(PATIENCE):
        await done.wait()
    assert times[-1] >= last + 0.05
    done.clear()
    reclaimer.used()
    async with asyncio.timeout(PATIENCE):
        await done.wait()


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
