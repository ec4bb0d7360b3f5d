"""Memory that is reserved at once, as addresses only, and takes space where it is written."""

from __future__ import annotations

import mmap
import sys

import torch

_MAP_NORESERVE = 0x4000
"""The flag of Linux on x86, ARM and RISC-V; Python's module has no name for it."""

_MOST_BYTES = 1 << 46
"""Half of the address space of a process under Linux with four levels of page tables."""


def reserve(count: int, dtype: torch.dtype) -> torch.Tensor | None:
    """A tensor of zeros whose pages take memory only once they are written; None if the system refuses it.

    It is refused under strict accounting (`vm.overcommit_memory=2`), by a limit on address space (`ulimit -v`), and on
    systems other than Linux. The memory is freed with the tensor and the views of it. A child that is forked
    gets a copy, as of other memory.

    Args:
        count: Number of elements, at least 1.
        dtype: Their dtype.
    """
    size = count * dtype.itemsize
    if sys.platform != "linux" or size > _MOST_BYTES:
        return None
    try:
        mapped = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE)
    except (OSError, ValueError, OverflowError):
        return None
    return torch.frombuffer(mapped, dtype=dtype)
