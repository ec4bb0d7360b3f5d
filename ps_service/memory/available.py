"""The memory that this process may use."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path


@cache
def memory() -> int:
    """The memory of this machine, or its container's limit, in bytes."""
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        text = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        text = "max"
    return min(found, int(text) if text.isdecimal() else found)
