"""Programs that tests start with the interpreter, and what these start, as forked processes."""

from __future__ import annotations

import multiprocessing.spawn
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.forking.process import Forking

PATIENCE = 60.0
"""Seconds within which the programs of a test have ended after it."""


@contextmanager
def forked_programs(forking: Forking) -> Iterator[None]:
    """Makes `sys.executable` a program that forks, also for `multiprocessing`; checks that no process is left."""
    before = forking.children()
    python = multiprocessing.spawn.get_executable()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in forking.variables.items():
            patch.setenv(name, value)
        patch.setattr(sys, "executable", forking.python)
        multiprocessing.set_executable(forking.python)
        try:
            yield
        finally:
            multiprocessing.set_executable(python)
    last = time.monotonic() + PATIENCE
    while left := forking.children() - before:
        assert time.monotonic() < last, f"processes are left: {left}"
        time.sleep(0.01)
