"""Compiles what tables need, before anybody makes a table."""

from __future__ import annotations

import os
import threading

from ps_service.tables import compiled
from ps_service.tables.code_cache import CodeCache
from ps_service.tables.compiling import compile_soon
from ps_service.tables.preparing import PREPARATION
from ps_service.tables.shard import TableShard


def warm() -> None:
    """Has everything compiled. Does nothing without numba, or if this process has a table with numba already.

    The first time on a machine this takes 6 to 11 seconds of one processor, and later, with the code on disk, about
    one. It may run in any thread. Tables that are made meanwhile wait for it.
    """
    PREPARATION.ensure(TableShard)


def warm_soon() -> threading.Thread:
    """Compiles in another process what is not on disk, and loads it, in a thread that nothing waits for.

    Nothing is compiled in this process, where numba's compiler would hold Python's global lock for seconds. If the code
    cannot be kept on disk, or another process compiles it, that is left to the first table.
    """
    thread = threading.Thread(target=_compile_and_load, name="ps-tables", daemon=True)
    thread.start()
    return thread


def _compile_and_load() -> None:
    compiling = compile_soon()
    if compiling is not None:
        compiling.join()
    if compiled.available() and CodeCache().complete:
        warm()


def fill_cache() -> None:
    """The work of the process that an owner starts (`ps_service.tables.compiling`): the same, until its input ends.

    The owner has given it the turn to compile.
    """
    threading.Thread(target=_end_with_input, daemon=True).start()
    PREPARATION.run(TableShard)


def _end_with_input() -> None:
    os.read(0, 1)  # not with `sys.stdin`: a thread that holds its lock at exit is a fatal error
    os._exit(1)
