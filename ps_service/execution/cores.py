"""The processor cores that this process may use, and the threads that torch gets inside one operation."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Final

_CGROUP: Final = Path("/sys/fs/cgroup")


def usable_cores(cgroup: Path = _CGROUP) -> int:
    """Number of cores that this process may use: those of its affinity, but no more than its container's quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _quota(cgroup)
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))


def torch_threads_of(compute_threads: int) -> int | None:
    """Number of threads that torch should use inside one operation: the share of the cores of a compute thread.

    Every compute thread has a team of OpenMP threads of its own. With more threads than cores, those that wait for work
    at the end of an operation take the cores from those that compute. None if the environment sets the number
    (`OMP_NUM_THREADS` or `MKL_NUM_THREADS`).
    """
    if os.environ.get("OMP_NUM_THREADS") or os.environ.get("MKL_NUM_THREADS"):
        return None
    return max(1, usable_cores() // compute_threads)


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
