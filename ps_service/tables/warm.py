"""Compiles what tables need, before anybody makes a table."""

from __future__ import annotations

import os
import threading

from ps_service.tables.preparing import PREPARATION
from ps_service.tables.shard import TableShard


def warm() -> None:
    """Has everything compiled. Does nothing without numba, or if this process has a table with numba already.

    It may run in any thread. Tables that are made meanwhile wait for it.
    """
    PREPARATION.ensure(TableShard)


def fill_cache() -> None:
    """The work of the process that an owner starts (`ps_service.tables.compiling`): the same, until its input ends.

    The owner has given it the turn to compile.
    """
    threading.Thread(target=_end_with_input, daemon=True).start()
    PREPARATION.run(TableShard)


def _end_with_input() -> None:
    os.read(0, 1)  # not with `sys.stdin`: a thread that holds its lock at exit is a fatal error
    os._exit(1)
