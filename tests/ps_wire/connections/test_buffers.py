"""Tests that a buffer is lent, returns to the pool with its last reference, and is used again."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ps_wire.connections.buffers import SMALLEST, BufferPool
from ps_wire.limits import MIB
from tests.ps_service.threads import Worker


@pytest.mark.parametrize("nbytes", [0, 1, SMALLEST - 1, SMALLEST, SMALLEST + 1, 5 * MIB])
def test_a_buffer_has_the_bytes_that_were_asked_for(nbytes: int) -> None:
    buffer = BufferPool(8 * MIB).take(nbytes)
    buffer[:] = 7
    assert len(buffer) == nbytes and buffer.sum() == 7 * nbytes


def test_a_buffer_comes_back_when_the_last_tensor_over_it_dies() -> None:
    pool = BufferPool(8 * MIB)
    buffer = pool.take(2 * MIB)
    place = buffer.ctypes.data
    tensor = torch.from_numpy(buffer[64:128])
    view = memoryview(buffer)
    del buffer, view
    gc.collect()
    assert pool.kept == 0
    tensor = tensor[3:]
    assert pool.take(2 * MIB).ctypes.data != place
    del tensor
    again = pool.take(2 * MIB - 5)
    assert again.ctypes.data == place and len(again) == 2 * MIB - 5


def test_a_buffer_that_dies_while_the_pool_is_locked_does_not_wait() -> None:
    pool = BufferPool(4 * MIB)
    buffers = [pool.take(MIB)]
    with pool._lock:
        Worker(buffers.clear).result()
    lent = pool.take(MIB)
    assert len(lent) == MIB and pool.kept == 0, "what was returned meanwhile is lent again"


def test_no_more_is_kept_than_was_agreed() -> None:
    pool = BufferPool(4 * MIB)
    buffers = [pool.take(nbytes * MIB) for nbytes in (1, 2, 4, 8, 1, 1)]
    while buffers:
        buffers.pop()
        assert pool.kept <= 4 * MIB
    assert pool.kept > 0


def test_sizes_that_are_wanted_now_take_the_place_of_others() -> None:
    pool = BufferPool(4 * MIB)
    small = [pool.take(MIB) for _ in range(4)]
    small.clear()
    large = pool.take(4 * MIB)
    place = large.ctypes.data
    del large
    assert pool.take(4 * MIB).ctypes.data == place


def test_threads_do_not_get_the_same_buffer() -> None:
    pool = BufferPool(64 * MIB)
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(200):
            buffer = pool.take(MIB)
            buffer[:8] = buffer[-8:] = number
            if not (buffer[:8] == number).all() or not (buffer[-8:] == number).all():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@given(st.lists(st.tuples(st.integers(0, 4 * MIB), st.booleans()), max_size=30))
def test_buffers_that_are_lent_at_once_never_overlap(wanted: list[tuple[int, bool]]) -> None:
    pool = BufferPool(8 * MIB)
    held: list[np.ndarray[tuple[int], np.dtype[np.uint8]]] = []
    for nbytes, release in wanted:
        if release and held:
            held.pop(0)
        held.append(pool.take(nbytes))
        spans = sorted((each.ctypes.data, each.ctypes.data + len(each)) for each in held if len(each))
        assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))


PAGES_OF_A_THREAD = """
import resource, threading
import numpy as np
from ps_wire.connections.buffers import teach_malloc

def pages(count):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(count):
        # Together they do not fit into one of the regions in which glibc's threads allocate.
        tensors = [np.ones(20 << 20, np.uint8) for _ in range(4)]
        del tensors
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def run():
    pages(2)
    print(pages(8))

teach_malloc()
thread = threading.Thread(target=run)
thread.start()
thread.join()
"""


def test_a_thread_gets_the_memory_of_freed_tensors_again() -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("MALLOC_", "GLIBC_"))}
    command = [sys.executable, "-c", PAGES_OF_A_THREAD]
    pages = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    # One tensor has 5,120.
    assert int(pages) < 1000
