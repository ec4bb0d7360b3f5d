"""Functions compiled by numba, where it is installed; their machine code is kept on disk."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

_log = logging.getLogger(__name__)

_REMEDY: Final = "pip install 'torch-parameter-server[tables]' installs it"


def is_installed() -> bool:
    """Whether numba is installed, which does not say that it can be imported."""
    return find_spec("numba") is not None


@cache
def available() -> bool:
    """Whether numba is installed (the extra `tables`) and can be imported.

    An installed one may refuse a numpy that is newer than itself. The first call imports it, and logs why not.
    """
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


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as machine code, compiled when it is first called. It runs without Python's global lock.

    Floating-point operations keep their order, so results do not depend on the processor. `NUMBA_CACHE_DIR` takes
    precedence over `cache_directory`. Where neither can be written, the code is compiled again in each process.
    """
    return _compiled(function, set())


def compiled_reordered(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same for a function with sums that the compiler may reorder, to use vectors of the processor's size."""
    return _compiled(function, {"reassoc", "contract"})


def _compiled(function: Callable[..., Any], reordering: set[str]) -> Callable[..., Any]:
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
    options = {"nogil": True, "cache": keeps, "error_model": "numpy", "fastmath": reordering or False}
    try:
        result: Callable[..., Any] = jit(**options)(function)
    finally:
        config.CACHE_DIR = before  # type: ignore[attr-defined]
    return result
