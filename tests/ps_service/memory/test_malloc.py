"""Tests that an owner keeps the memory that it frees while it is busy, and returns it when it has a lot of it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from ps_service.memory import malloc
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


FAULTS = """
import resource, runpy, sys, threading
# Without its package, which imports torch.
keep_free_memory = runpy.run_path(sys.argv[1])["keep_free_memory"]

faults = []

def passes() -> None:
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
        # More than one heap of a thread.
        blocks = [bytearray(30 << 20) for _ in range(3)]
        while blocks:
            del blocks[0]
        faults.append(resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before)

keep_free_memory()
thread = threading.Thread(target=passes)
thread.start()
thread.join()
print(*faults)
"""


def page_faults(**environment: str) -> list[int]:
    """Page faults of three passes in a thread of a new process, which allocate and free the same blocks."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("MALLOC_", "GLIBC_"))}
    command = [sys.executable, "-c", FAULTS, malloc.__file__]
    done = subprocess.run(command, env=inherited | environment, stdout=subprocess.PIPE, text=True, check=True)
    return [int(each) for each in done.stdout.split()]


def test_a_pass_in_a_thread_uses_the_memory_of_the_last_one() -> None:
    first, *later = page_faults()
    assert first > 1000
    assert max(later) < 100


def test_a_padding_from_the_environment_is_left_alone() -> None:
    assert min(page_faults(MALLOC_TOP_PAD_="4096")) > 1000
    assert min(page_faults(GLIBC_TUNABLES="glibc.malloc.top_pad=4096")) > 1000
