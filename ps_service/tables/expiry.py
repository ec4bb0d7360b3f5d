"""Removes expired rows of tables from time to time, in short turns."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from ps_wire.runtime.threads import BLOCKING

if TYPE_CHECKING:
    from ps_service.tables.stand_in import RowsOfTable

_log = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 1.0
"""Longest time until a new table is noticed."""

_LONGEST_SECONDS: Final = 60.0
"""Longest time between two rounds through a table."""

_ROUNDS_PER_TTL: Final = 10


class Expiry:
    """Goes through the tables whose rows expire, ten times within the time after which they do, or once a minute.

    A turn looks at 16,384 rows, in a thread, under the lock of the table, which takes less than a millisecond if none
    of them goes. Then it rests as long as the turn has taken, so look-ups and steps come in between.

    Args:
        tables: The tables of the owner.
    """

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
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _run(self) -> None:
        while not self._ending:
            seconds = _LOOK_SECONDS
            for table in list(self._tables()):
                ttl = table.ttl
                if ttl is None:
                    continue
                pause = min(ttl / _ROUNDS_PER_TTL, _LONGEST_SECONDS)
                if time.monotonic() >= self._due.get(table, 0.0):
                    try:
                        await self._round(table)
                    except Exception:
                        _log.exception("removing expired rows of %s failed; it will be tried again", table)
                    self._due[table] = time.monotonic() + pause
                seconds = min(seconds, max(pause, 0.05))
            await asyncio.sleep(seconds)

    async def _round(self, table: RowsOfTable) -> None:
        begin: int | None = 0
        while begin is not None and not self._ending:
            began = time.monotonic()
            turn = asyncio.ensure_future(BLOCKING.run(table.expire, begin))
            try:
                begin = await asyncio.shield(turn)
            except asyncio.CancelledError:
                await asyncio.wait([turn])
                raise
            await asyncio.sleep(time.monotonic() - began)
