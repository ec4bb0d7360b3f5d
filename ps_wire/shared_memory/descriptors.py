"""Descriptors: how many files and connections this process may still open."""

from __future__ import annotations

import os
import resource
from typing import Final

RESERVE: Final = 32
"""Descriptors that are left to sessions that are open already, to checkpoints and to hosted code."""

_ENOUGH: Final = 1 << 20
"""Where the system names no hard limit."""


def raise_limit() -> None:
    """Lets this process open as many as the system allows it; by default that is often a small part of it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def shortage() -> str:
    """Says, for people, that this process can hardly open any more files; empty if it can."""
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
