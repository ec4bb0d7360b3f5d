"""Tests that a busy owner returns free memory to the system when it has a lot of it."""

from __future__ import annotations

import asyncio

import pytest

from ps_service.memory.malloc import TOO_MUCH_BYTES, MemoryKeeper


class Process:
    """Stands for the process: how much memory it has, and how much of that is free."""

    def __init__(self) -> None:
        self.used = 0
        self.free = 0

    def trim(self) -> None:
        self.free = 0

    def resident(self) -> int:
        return self.used + self.free


@pytest.fixture
def process() -> Process:
    return Process()


@pytest.fixture
def keeper(process: Process) -> MemoryKeeper:
    return MemoryKeeper(process.trim, process.resident)


async def test_free_memory_is_given_back_once_it_is_very_much(keeper: MemoryKeeper, process: Process) -> None:
    process.free = TOO_MUCH_BYTES - 1
    assert not await keeper.look()
    process.free = TOO_MUCH_BYTES
    assert await keeper.look()
    assert process.free == 0


async def test_nothing_is_done_again_and_again_for_memory_in_use(keeper: MemoryKeeper, process: Process) -> None:
    process.used = 10 * TOO_MUCH_BYTES
    assert [await keeper.look() for _ in range(3)] == [True, False, False]
    process.used = 0
    process.free = TOO_MUCH_BYTES
    assert not await keeper.look()
    process.used = TOO_MUCH_BYTES
    assert await keeper.look()


async def test_the_memory_keeper_ends_when_it_is_cancelled(keeper: MemoryKeeper) -> None:
    task = asyncio.create_task(keeper.keep())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
