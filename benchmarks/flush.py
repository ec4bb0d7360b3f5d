"""Measures how long the disk of a folder takes to flush what was written."""

from __future__ import annotations

import os
import statistics
from pathlib import Path
from time import perf_counter
from typing import Final

from benchmarks.rows import KIB, MIB

TIMES: Final = 30
"""Flushes of each size."""

SIZES: Final = {"4 KiB": 4 * KIB, "1 MiB": MIB, "40 MB": 40_000_000}


def measure(folder: Path, times: int = TIMES) -> dict[str, float]:
    """Milliseconds for writing so many bytes over the beginning of a file and flushing it, as a log does it; medians.

    Raises:
        OSError: The file cannot be written.
    """
    path = folder / "flushed"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, max(SIZES.values()))
        # Blocks that were never written have to be entered into the file by their first flush.
        _flush(descriptor, os.urandom(max(SIZES.values())))
        return {
            name: 1e3 * statistics.median(_flush(descriptor, os.urandom(nbytes)) for _ in range(times))
            for name, nbytes in SIZES.items()
        }
    finally:
        os.close(descriptor)
        path.unlink()


def _flush(descriptor: int, block: bytes) -> float:
    began, written = perf_counter(), 0
    while written < len(block):
        written += os.pwrite(descriptor, memoryview(block)[written:], written)
    os.fdatasync(descriptor)
    return perf_counter() - began
