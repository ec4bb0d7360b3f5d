"""Tests of reserved memory, and of the thread that takes memory before it is written."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys

import numpy as np
import pytest
import torch

from ps_service.tables import reservation
from ps_service.tables.reservation import PREFAULTER, Prefaulter, Reservation
from ps_service.tables.shard import TableShard
from ps_wire.tables.options import SGD

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is reserved on Linux only")

MIB = 1 << 20


def resident(tensor: torch.Tensor) -> int:
    """Bytes of memory that the pages of a reserved tensor take."""
    pages = (ctypes.c_ubyte * (tensor.nbytes // mmap.PAGESIZE))()
    mincore = ctypes.CDLL(None).mincore
    assert not mincore(ctypes.c_void_p(tensor.data_ptr()), ctypes.c_size_t(len(pages) * mmap.PAGESIZE), pages)
    return sum(pages) * mmap.PAGESIZE


def reserved(nbytes: int) -> Reservation:
    made = Reservation.make(nbytes // 4, torch.float32)
    assert made is not None
    return made


def grow(made: Reservation, nbytes: int) -> None:
    """Writes up to a number of bytes, as rows do when a table grows."""
    made.tensor[: nbytes // 4].fill_(1.0)
    made.grown(nbytes // 4)
    PREFAULTER.wait()


def test_memory_is_taken_for_what_comes_next() -> None:
    made = reserved(512 * MIB)
    grow(made, 4 * MIB)
    assert resident(made.tensor) <= 5 * MIB
    grow(made, 128 * MIB)
    assert 132 * MIB <= resident(made.tensor) <= 136 * MIB
    # A small growth takes little, and nothing is taken twice.
    grow(made, 129 * MIB)
    assert resident(made.tensor) <= 136 * MIB
    # As zeros.
    assert not made.tensor[129 * MIB // 4 : 136 * MIB // 4].any()


def test_no_more_is_taken_than_there_is() -> None:
    made = reserved(33 * MIB)
    grow(made, 32 * MIB)
    assert resident(made.tensor) <= 33 * MIB
    grow(made, 33 * MIB)


def test_what_is_cleared_takes_memory_anew() -> None:
    made = reserved(256 * MIB)
    grow(made, 128 * MIB)
    made.clear()
    assert resident(made.tensor) == 0
    grow(made, 64 * MIB)
    assert 66 * MIB <= resident(made.tensor) <= 68 * MIB


def test_values_that_are_written_meanwhile_stay() -> None:
    made = reserved(64 * MIB)
    values = made.tensor.numpy()
    for begin in range(0, 64, 4):
        PREFAULTER.ask(made.tensor, begin * MIB, (begin + 4) * MIB)
        for at in range(begin * MIB // 4, (begin + 4) * MIB // 4, 4096):
            values[at] = at
    PREFAULTER.wait()
    written = np.arange(0, len(values), 4096)
    assert (values[written] == written.astype(np.float32)).all()


def test_a_system_that_cannot_do_it_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    prefaulter = Prefaulter()
    prefaulter._madvise = lambda *of: calls.append(of) or -1
    monkeypatch.setattr(reservation, "PREFAULTER", prefaulter)
    made = reserved(64 * MIB)
    for size in (16, 32, 64):
        made.grown(size * MIB // 4)
        prefaulter.wait()
    assert len(calls) == 1
    made.tensor.fill_(1.0)


def test_a_forked_process_has_a_thread_of_its_own() -> None:
    made = reserved(64 * MIB)
    PREFAULTER.ask(made.tensor, 0, 2 * MIB)
    PREFAULTER.wait()
    if not (child := os.fork()):
        PREFAULTER.ask(made.tensor, 0, 32 * MIB)
        PREFAULTER.wait()
        os._exit(0 if resident(made.tensor) == 32 * MIB else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_tables_that_grow_take_memory_ahead() -> None:
    shard = TableShard(64, SGD(0.1))
    shard.look_up(torch.arange(100_000))
    values = shard._rows.values.flat
    assert values is not None
    for turn in range(1, 3):
        shard.look_up(torch.arange(100_000 * turn, 100_000 * (turn + 1)))
    PREFAULTER.wait()
    assert resident(values) >= 300_000 * 256 + MIB
