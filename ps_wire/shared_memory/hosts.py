"""Identifies hosts, to tell whether two processes can share memory."""

from __future__ import annotations

import os
import socket
import sys
from functools import cache
from pathlib import Path
from typing import Final

SHARED_MEMORY_IS_POSSIBLE: Final = (
    sys.platform == "linux" and hasattr(os, "memfd_create") and hasattr(socket, "send_fds")
)
"""Whether there is sealed anonymous memory and abstract Unix sockets, as on Linux."""


@cache
def host_id() -> str:
    """A text that is equal in two processes under one kernel and in one network namespace; empty if it is unknown.

    Abstract Unix sockets belong to a network namespace, so containers with networks of their own cannot use them.
    """
    if not SHARED_MEMORY_IS_POSSIBLE:
        return ""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.stat('/proc/self/ns/net').st_ino}"
    except OSError:
        return ""
