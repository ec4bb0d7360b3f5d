"""The processor cores that this process may use, and the threads that torch gets inside one operation."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

_CGROUP: Final = Path("/sys/fs/cgroup")


def usable_cores(cgroup: Path = _CGROUP) -> int:
    """Number of cores that this process may use: those of its affinity, but no more than its container's quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _quota(cgroup)
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))


def torch_threads_of(compute_threads: int) -> int | None:
    """How many threads torch should use in an operation: a compute thread's share of cores; None if variables say it.

    Every compute thread has a team of OpenMP threads of its own. With more threads than cores, those that wait for work
    at the end of an operation take the cores from those that compute.
    """
    if os.environ.get("OMP_NUM_THREADS") or os.environ.get("MKL_NUM_THREADS"):
        return None
    return max(1, usable_cores() // compute_threads)


LONG_SECONDS: Final = 10e-3
"""Work that takes less on average has one core. The members of a team of OpenMP threads keep their cores busy for a
while after an operation, and a trainer on the same host needs one for its own part."""


class SharedCores:
    """Divides the cores among the compute threads that run something: all for one, at least one for each of many.

    Torch keeps the number of threads inside an operation for each thread that calls operations. `set_threads` sets the
    number for the calling thread, as `torch.set_num_threads` does.
    """

    def __init__(self, set_threads: Callable[[int], None], cores: int) -> None:
        self._set_threads = set_threads
        self._cores = cores
        self._average = 0.0
        self._this_thread = threading.local()

    def take(self, running: int) -> None:
        """Gives the calling thread its share. `running` is the number of threads that run something, with this one."""
        share = max(1, self._cores // running) if self._average > LONG_SECONDS else 1
        if getattr(self._this_thread, "share", None) != share:
            self._this_thread.share = share
            self._set_threads(share)

    def note(self, seconds: float) -> None:
        """Notes how long some work took."""
        self._average = 0.8 * self._average + 0.2 * seconds


def _quota(cgroup: Path) -> float | None:
    """The quota of processor time of the container, in cores; None if there is none."""
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota = (cgroup / "cpu/cpu.cfs_quota_us").read_text().strip()
            period = (cgroup / "cpu/cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    if not (quota.isdecimal() and period.isdecimal() and int(period)):
        return None
    return int(quota) / int(period)
