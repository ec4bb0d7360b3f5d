"""The methods of a client that move rows of tables from one owner to another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ps_wire.errors import PsError
from ps_wire.v1.frames_pb2 import Request
from ps_wire.v1.operations_pb2 import StatusRequest
from trainer_client.pending import Pending
from trainer_client.tables import placement
from trainer_client.tables.moves import PATIENCE_SECONDS, PAUSE_SECONDS, Move, Moved

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine, Iterable, Sequence

    from ps_wire.tables.routing import Routing
    from trainer_client.tables.creation import Tables
    from trainer_client.tables.table import Table


class OffersMoves:
    """What a client does to have tables on other owners, while trainers train."""

    _tables: Tables
    _loop: asyncio.AbstractEventLoop
    table: Callable[..., Pending[Table]]

    def rebalance(
        self,
        tables: Iterable[Table | str] | None = None,
        owners: Sequence[str] | None = None,
        *,
        pause: float = PAUSE_SECONDS,
        patience: float = PATIENCE_SECONDS,
    ) -> Pending[list[Moved]]:
        """Spreads the slots of tables evenly over owners, while trainers train.

        Rows are copied in the background, with all that belongs to them, through this process. Then look-ups wait for a
        moment, until the passes that use rows of the owner have ended, and the slots change their owner. Trainers go on
        with the new one by themselves.

        Args:
            tables: The tables, or their names; None for all of the owners.
            owners: Names of the owners that are to have the slots, and nobody else; None for all owners of this client,
                in a group also those that have joined since (`find_owners`).
            pause: The most seconds for which look-ups wait, for each move. One that finds no moment in which passes
                end within it is tried again.
            patience: The most seconds for which a move is tried.

        Returns:
            The moves that were made.

        Raises:
            PsError: A table could not be moved, and the others were. Of several errors the first:
            DeadlineExceededError: Passes went on for longer than the pause may last, all the time. Slots that were
                moved before stay where they are.
            InvalidArgumentError: The optimizer of a table has a policy or a scheduler, and an owner would get its first
                slots or lose its last.
            NameConflictError: Something else has the name of the table on an owner.
            TooLargeError: An owner would have more rows than it may.
        """

        def plan(routing: Routing) -> list[placement.Step]:
            return placement.even(routing, self._tables.sessions.names if owners is None else owners)

        return Pending.run(self._loop, self._moved(tables, owners, plan, pause, patience))

    def drain(
        self,
        owner: str,
        to: str | Sequence[str] | None = None,
        tables: Iterable[Table | str] | None = None,
        *,
        pause: float = PAUSE_SECONDS,
        patience: float = PATIENCE_SECONDS,
    ) -> Pending[list[Moved]]:
        """Moves all slots of tables away from an owner, as `rebalance` does, so that it may be stopped for good.

        Args:
            owner: The owner that is to have no rows.
            to: The owner that gets its slots, or several that share them; None for all others of this client.
            tables, pause, patience: As for `rebalance`.

        Returns, Raises:
            As `rebalance`.
        """

        def plan(routing: Routing) -> list[placement.Step]:
            others = [name for name in self._tables.sessions.names if name != owner]
            return placement.away(routing, owner, others if to is None else [to] if isinstance(to, str) else list(to))

        return Pending.run(self._loop, self._drained(owner, self._moved(tables, [owner], plan, pause, patience)))

    async def _drained(self, owner: str, moving: Coroutine[Any, Any, list[Moved]]) -> list[Moved]:
        try:
            await self._tables.sessions.all_of([owner])
        except BaseException:
            moving.close()
            raise
        return await moving

    async def _moved(
        self,
        tables: Iterable[Table | str] | None,
        owners: Sequence[str] | None,
        plan: Callable[[Routing], list[placement.Step]],
        pause: float,
        patience: float,
    ) -> list[Moved]:
        listed: list[Any] = list(tables) if tables is not None else await self._all_tables(owners)
        made: list[Moved] = []
        failed: list[PsError] = []
        for each in listed:
            try:
                table = await self.table(each) if isinstance(each, str) else each
                for step in plan(await table.follower.follow_all()):
                    made.append(await Move(self._tables, table, *step, pause).run(patience))
            except PsError as error:  # the others can move all the same
                failed.append(error)
        if failed:
            raise failed[0]
        return made

    async def _all_tables(self, owners: Sequence[str] | None) -> list[str]:
        """Names of the tables of some owners, or of all that this client is connected to."""
        names: dict[str, None] = {}
        request = Request(status=StatusRequest())
        sessions = self._tables.sessions
        for session in await sessions.all_of(sessions.names if owners is None else [*owners, *sessions.names]):
            status = await session.submit(request, None, lambda reply, _: reply.status)
            names.update((each.name, None) for each in status.tables)
        return sorted(names)
