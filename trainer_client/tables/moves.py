"""Moves slots of a table from one owner to another while trainers train."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from ps_wire.errors import DeadlineExceededError, InvalidArgumentError, PsError, RowsMovedError, StaleHandleError
from ps_wire.runtime.noop import noop
from ps_wire.v1.frames_pb2 import Request
from ps_wire.v1.operations_pb2 import DurableRequest
from trainer_client.pauses import PATIENCE_SECONDS, PAUSE_SECONDS

if TYPE_CHECKING:
    from ps_wire.tables.routing import Routing
    from trainer_client.tables.creation import Tables
    from trainer_client.tables.table import Table

_SHARE_OF_PASSES: Final = 0.6
"""The part of the pause that passes which have begun get to end."""

_FEW_ROWS: Final = 2048
"""So few rows that have changed are left for the pause."""

_MOST_ROUNDS: Final = 20
"""Rounds of catching up after which the table is closed, however many rows have changed."""

_AGAIN_SECONDS: Final = 0.05
"""Seconds after the table was closed in vain until it is closed again, at first."""


class Moved(NamedTuple):
    """Slots of a table that have moved.

    Attributes:
        table: Name of the table.
        source, target: The owner that had them, and the one that has them.
        slots: How many.
        rows: How many rows were copied at first.
        pause: Seconds for which look-ups waited.
        version: The version of the routing since.
    """

    table: str
    source: str
    target: str
    slots: int
    rows: int
    pause: float
    version: int


class _NotNow(Exception):
    """Passes went on for longer than the pause may last."""


class Move:
    """One move of slots, bool [SLOTS], from an owner that has them to another one.

    The rows go through this process. If it is gone in the middle, or an owner is, then the slots have moved or have
    not; a later move makes up for what is missing.
    """

    def __init__(
        self, tables: Tables, table: Table, source: str, target: str, slots: torch.Tensor, pause: float = PAUSE_SECONDS
    ) -> None:
        if not 0 < pause <= 10:
            raise InvalidArgumentError(f"a table is closed for at most 10 seconds, not {pause!r}")
        self._tables, self._table = tables, table
        self._source, self._target, self._slots = source, target, slots
        self._pause = pause
        self._id = ""
        self._rows = 0
        self._paused = 0.0
        self._is_new = self._is_last = self._released = False

    async def run(self, patience: float = PATIENCE_SECONDS) -> Moved:
        """Moves them. Begins anew if an owner was killed meanwhile, or all rows were removed. Raises
        `DeadlineExceededError` if there was no moment without a pass, and `InvalidArgumentError` if the optimizer of
        the table has what the other owner would lack."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + patience
        while True:
            routing = await self._table.follower.follow_all()
            if not (self._slots & ~routing.slots(self._target)).any():
                break
            if (self._slots & ~routing.slots(self._source) & ~routing.slots(self._target)).any():
                raise RowsMovedError(
                    f"owner {self._source!r} does not have all of these slots of {self._table.name!r} any more: "
                    "another program moves them, too. Begin again when it has ended"
                )
            try:
                await self._check(routing)
                await self._attempt(ends)
            except RowsMovedError:
                if loop.time() >= ends:
                    raise
            except StaleHandleError:
                # Somebody has deleted the table, and may not have known the other owner.
                if self._is_new and not self._released:
                    await self._tables.forget(self._table, self._target)
                raise
        routing = await self._table.follower.follow_all()
        await self._purge()
        slots = int(self._slots.sum())
        return Moved(self._table.name, self._source, self._target, slots, self._rows, self._paused, routing.version)

    async def _check(self, routing: Routing) -> None:
        """Makes what the other owner needs. What only those have that are there stays with these."""
        self._is_new = self._target not in routing.owners
        self._is_last = not (routing.slots(self._source) & ~self._slots).any()
        await self._prepare()

    async def _prepare(self) -> None:
        """Gives the other owner the options of the optimizer, if it may have them."""
        if (self._is_new or self._is_last) and (found := await self._call(self._source, "used_with")):
            raise InvalidArgumentError(
                f"the optimizer of table {self._table.name!r} has {' and '.join(found)}, which are on its owners: its "
                "slots can move between these, and each of them keeps some"
            )
        if self._is_new:
            await self._tables.extend(self._table, self._target)

    async def _attempt(self, ends: float) -> None:
        self._id, self._rows = uuid.uuid4().hex, 0
        routing = await self._table.follower.follow(self._source)
        self._slots = self._slots & routing.slots(self._source)
        turn = await self._call(self._source, "begin_move", self._id, self._slots, self._target)
        try:
            await self._call(self._target, "agree", routing.to_plain())
            await self._call(self._target, "begin_arrival", self._id, self._slots, self._source, turn)
            await self._purge_on(self._target)
            await self._copy()
            await self._switch(ends)
        except BaseException:
            with suppress(PsError):
                # If the source does not know the move any more, it may have released the slots.
                if await self._call(self._source, "reopen", self._id, True):
                    await self._call(self._target, "end_arrival", self._id)
            raise

    async def _copy(self) -> None:
        begin: int | None = 0
        none = torch.empty(0, dtype=torch.int64, device="cpu")
        while begin is not None:
            block, begin = await self._call(self._source, "moving_rows", self._id, begin)
            self._rows += len(block["ids"])
            if len(block["ids"]):
                await self._call(self._target, "stage", self._id, block, none)

    async def _catch_up(self, few: int) -> None:
        """Copies what has changed, until that were at most so many rows."""
        for _ in range(_MOST_ROUNDS):
            block, gone, left = await self._call(self._source, "changed_rows", self._id)
            count = len(block["ids"]) + len(gone)
            if count:
                await self._call(self._target, "stage", self._id, block, gone)
            if count + left <= few:
                return

    async def _switch(self, ends: float) -> None:
        loop = asyncio.get_running_loop()
        wait = _AGAIN_SECONDS
        while True:
            await self._catch_up(_FEW_ROWS)
            await self._synced(self._target)
            began = loop.time()
            await self._call(self._source, "close", self._id, self._pause)
            try:
                await self._quiet(began)
                await self._catch_up(0)
                await self._synced(self._target)
                await self._prepare()  # options may have changed
                if steps := await self._call(self._source, "applied_steps"):
                    await self._call(self._target, "take_applied", self._id, steps)
                    await self._synced(self._target)
                await self._call(self._target, "is_ready", self._id)
                told = await self._call(self._source, "release", self._id)
            except _NotNow:
                told = None
            if told is not None:
                self._released = True
                break
            await self._call(self._source, "reopen", self._id, False)
            if loop.time() >= ends:
                raise DeadlineExceededError(
                    f"there was no moment without a pass that uses rows of table {self._table.name!r} on owner "
                    f"{self._source!r}; none of these slots has moved. If passes take longer than {self._pause:g} s, "
                    "allow a longer pause"
                )
            await asyncio.sleep(wait)
            wait = min(2 * wait, 1.0)
        # Nobody is told, while the pause lasts, before a crash of the machine could not undo it any more.
        await self._synced(self._source)
        await self._call(self._target, "agree", told)
        await self._call(self._source, "reopen", self._id, True)
        # The owner opens the table by itself when the pause is over.
        self._paused = min(loop.time() - began, self._pause)

    async def _quiet(self, began: float) -> None:
        """Waits until no pass uses the rows."""
        loop = asyncio.get_running_loop()
        while not await self._call(self._source, "is_quiet", self._id):
            if loop.time() - began > _SHARE_OF_PASSES * self._pause:
                raise _NotNow
            await asyncio.sleep(0.001)

    async def _purge(self) -> None:
        with suppress(RowsMovedError):
            await self._purge_on(self._source)

    async def _purge_on(self, owner: str) -> None:
        begin: int | None = 0
        while begin is not None:
            begin = await self._call(owner, "purge", begin, self._id)

    async def _synced(self, owner: str) -> None:
        """Waits until what an owner has done is on its disk, if it has a log."""
        session = self._table.known_shards[owner].session
        if session.prepares:
            request = Request(durable=DurableRequest(position=session.requests.position))
            await session.submit(request, None, noop)

    async def _call(self, owner: str, method: str, *args: Any) -> Any:
        return await self._table.follower.call(owner, method, *args)
