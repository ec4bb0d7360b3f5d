"""Removes expired rows of tables, and makes room in full ones, in short turns."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from ps_wire.errors import StorageError
from ps_wire.runtime import tasks
from ps_wire.runtime.threads import BLOCKING

if TYPE_CHECKING:
    from ps_service.tables.stand_in import RowsOfTable

_log = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 0.5
"""Longest time until it is noticed that a table is new, or nearly full."""

_LONGEST_SECONDS: Final = 60.0
"""Longest time between two rounds through a table."""

_ROUNDS_PER_TTL: Final = 10

_OVER: Final = object()


class Expiry:
    """Goes through the tables whose rows expire, ten times within the time after which they do, or once a minute, and
    makes room in those that are nearly full before look-ups have to wait for that. A turn looks at 16,384 rows, in a
    thread, under the lock of the table, which takes less than a millisecond if none of them goes. Then it rests as long
    as the turn has taken. What tables keep for readers that have gone is given up, too."""

    def __init__(self, tables: Callable[[], Iterable[RowsOfTable]]) -> None:
        self._tables: Final = tables
        self._due: WeakKeyDictionary[RowsOfTable, float] = WeakKeyDictionary()
        self._ending = False
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Starts the rounds."""
        self._task = asyncio.create_task(self._run())

    async def end(self) -> None:
        """Stops the rounds, if they were started; a turn that has begun ends first."""
        self._ending = True
        task, self._task = self._task, None
        if task is not None:
            await tasks.end(task)

    async def _run(self) -> None:
        while not self._ending:
            seconds = _LOOK_SECONDS
            for table in list(self._tables()):
                table.sweep()
                pause = math.inf if table.ttl is None else min(table.ttl / _ROUNDS_PER_TTL, _LONGEST_SECONDS)
                is_due = table.ttl is not None and time.monotonic() >= self._due.get(table, 0.0)
                if is_due or table.shard.excess:
                    try:
                        await self._round(table.shard.turns(is_due))
                    except StorageError as error:
                        _log.warning("no rows of %s can be removed: %s", table, error)
                    except Exception:
                        _log.exception("removing rows of %s failed; it will be tried again", table)
                    if is_due:
                        self._due[table] = time.monotonic() + pause
                seconds = min(seconds, max(pause, 0.05))
            await asyncio.sleep(seconds)

    async def _round(self, turns: Iterator[None]) -> None:
        is_over = False
        while not is_over and not self._ending:
            began = time.monotonic()
            turn = asyncio.ensure_future(BLOCKING.run(next, turns, _OVER))
            try:
                is_over = await asyncio.shield(turn) is _OVER
            except asyncio.CancelledError:
                await asyncio.wait([turn])
                raise
            await asyncio.sleep(time.monotonic() - began)
