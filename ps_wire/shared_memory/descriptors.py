"""The limit of file descriptors of this process."""

from __future__ import annotations

import os
import resource
from typing import Final

RESERVE: Final = 32
"""Descriptors that are reserved for open sessions, checkpoints and hosted code."""

_ENOUGH: Final = 1 << 20
"""The limit if the system has no hard limit."""


def raise_limit() -> None:
    """Raises the limit of open files to the hard limit; the default is often much lower."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def shortage() -> str:
    """A message that says that few descriptors are left; empty if there are enough."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return ""
    try:
        used = len(os.listdir("/proc/self/fd"))
    except FileNotFoundError:
        # A system without /proc.
        return ""
    except OSError:
        used = limit
    if used + RESERVE <= limit:
        return ""
    return f"{used} of its {limit} file descriptors are in use (ulimit -n)"
