"""Functions compiled by numba, where it is installed, and the folder in which their machine code is kept."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

_log = logging.getLogger(__name__)

_PACKAGE: Final = Path(__file__).parent
_REMEDY: Final = "pip install 'torch-parameter-server[tables]' installs it"


def is_installed() -> bool:
    """Whether numba is installed, which does not say that it can be imported."""
    return find_spec("numba") is not None


@cache
def available() -> bool:
    """Whether numba is installed (the extra `tables`) and can be imported: it may refuse a numpy that is newer than
    itself. The first call imports it, and logs why not."""
    if not is_installed():
        _log.info("tables are slower here, because numba is not installed: %s", _REMEDY)
        return False
    try:
        import numba  # noqa: F401
    except Exception as error:  # whatever another package raises
        _log.warning(
            "tables are slower here, because numba cannot be imported (%s); %s in a version that fits", error, _REMEDY
        )
        return False
    return True


def cache_directory() -> Path:
    """Where compiled code is kept: below `$XDG_CACHE_HOME`, or `~/.cache`. Only its user can write there."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "torch-parameter-server" / "numba"


def compiled(function: Callable[..., Any], *, reorders: bool = False) -> Callable[..., Any]:
    """The function as machine code, compiled when it is first called. It runs without Python's global lock.

    Floating-point operations keep their order, so results do not depend on the processor, unless the compiler may
    reorder sums to use vectors of the processor's size. `NUMBA_CACHE_DIR` takes precedence over `cache_directory`.
    Where neither can be written, the code is compiled again in each process.
    """
    import numba
    from numba import config

    jit: Any = numba.njit
    before = config.CACHE_DIR  # type: ignore[attr-defined]  # numba makes its settings when it is imported
    keeps = bool(before)
    if not keeps:
        directory = cache_directory()
        with suppress(OSError):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            config.CACHE_DIR = str(directory)  # type: ignore[attr-defined]
            keeps = True
    reordering = {"reassoc", "contract"} if reorders else False
    options = {"nogil": True, "cache": keeps, "error_model": "numpy", "fastmath": reordering}
    try:
        result: Callable[..., Any] = jit(**options)(function)
    finally:
        config.CACHE_DIR = before  # type: ignore[attr-defined]
    return result


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
        """The turn to compile, as a file descriptor: closing it gives the turn back. If another process has it, this
        waits for it, or returns None. Raises `OSError` if the folder cannot be written or locked."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(f"{self._mark}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError as error:
            os.close(descriptor)
            if isinstance(error, BlockingIOError):
                return None
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
