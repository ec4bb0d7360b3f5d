"""Whether the loops of tables have been compiled on this machine, and who compiles them."""

from __future__ import annotations

import fcntl
import hashlib
import os
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from ps_service.tables.compiled import cache_directory

_PACKAGE: Final = Path(__file__).parent


class CodeCache:
    """The folder in which numba keeps compiled code, with a mark once all loops of tables are there.

    The mark is a file that names the sources, numba and the processor, so it says nothing of code compiled from others.
    One process at a time has the turn to compile; the system takes the turn back when the process ends.
    """

    def __init__(self) -> None:
        self.folder: Final = Path(os.environ.get("NUMBA_CACHE_DIR") or cache_directory())
        kind = f"{sys.implementation.cache_tag} {_PACKAGE}".encode()
        self._mark: Final = self.folder / f"tables-{hashlib.sha256(kind).hexdigest()[:16]}"

    @property
    def complete(self) -> bool:
        """Whether every loop is there."""
        try:
            return self._mark.read_text() == _version()
        except OSError:
            return False

    def mark(self) -> None:
        """Notes that every loop is there. Does nothing where the folder cannot be written."""
        with suppress(OSError):
            partial = self._mark.with_name(f"{self._mark.name}-{os.getpid()}")
            partial.write_text(_version())
            partial.replace(self._mark)

    def turn(self, *, wait: bool) -> int | None:
        """The turn to compile, as a file descriptor: closing it gives the turn back.

        If another process has it, this waits for it, or returns None. Raises `OSError` if the folder cannot be written
        or locked.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(f"{self._mark}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError:
            os.close(descriptor)
            raise
        return descriptor


def _version() -> str:
    """What compiled code depends on: the sources, numba with its variables, and the processor."""
    numba = find_spec("numba")
    files = [*sorted(_PACKAGE.rglob("*.py")), *([Path(numba.origin)] if numba is not None and numba.origin else [])]
    parts = [sys.version, *(f"{name}={os.environ[name]}" for name in sorted(os.environ) if name.startswith("NUMBA_"))]
    for file in files:
        found = file.stat()
        parts.append(f"{file} {found.st_mtime_ns} {found.st_size}")
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        parts += sorted({line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))})
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
