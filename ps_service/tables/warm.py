"""Compiles what tables need, before anybody makes a table."""

from __future__ import annotations

from ps_service.tables.preparing import PREPARATION
from ps_service.tables.shard import TableShard


def warm() -> None:
    """Has everything compiled. Does nothing without numba, or if this process has a table with numba already.

    The first time on a machine this takes 6 seconds of one processor, and later, with the code on disk, 0.7. It may run
    in any thread. Tables that are made meanwhile wait for it.
    """
    PREPARATION.ensure(TableShard)
