"""Processes that a Ctrl-C in the terminal does not reach."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker


@contextmanager
def shielded() -> Iterator[None]:
    """Processes that are started in this block never see Ctrl-C.

    A terminal sends it to all processes of a program. Only the one that has started the others should act on it: it
    ends them, and says so in one line instead of a traceback from each. A Ctrl-C during the block comes after it.
    """
    # The first process of multiprocessing also starts its resource tracker, which clears the mask.
    resource_tracker.ensure_running()
    # A process inherits the mask of the thread that starts it.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
