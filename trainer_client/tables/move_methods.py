"""The methods of a client that move rows of tables from one owner to another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ps_wire.errors import InvalidArgumentError, PsError
from ps_wire.v1.frames_pb2 import Request
from ps_wire.v1.operations_pb2 import StatusRequest
from trainer_client.handles.listed import listed
from trainer_client.handles.named import named_parts
from trainer_client.handles.object_moves import Drain, MovedObjects, ObjectMove
from trainer_client.pauses import PATIENCE_SECONDS, PAUSE_SECONDS
from trainer_client.pending import Pending
from trainer_client.tables import placement
from trainer_client.tables.moves import Move, Moved

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Sequence

    from ps_wire.tables.routing import Routing
    from trainer_client.handles.handles import RemoteObject
    from trainer_client.optimizers.optimizer import DistributedOptimizer
    from trainer_client.session.session import Session
    from trainer_client.tables.creation import Tables
    from trainer_client.tables.table import Table


class MoveMethods:
    """What a client does to have tables on other owners, while trainers train."""

    _tables: Tables
    _loop: asyncio.AbstractEventLoop
    trainer: bytes
    table: Callable[..., Pending[Table]]
    session: Callable[[str], Session]

    def rebalance(
        self,
        tables: Table | str | Iterable[Table | str] | None = None,
        owners: str | Sequence[str] | None = None,
        *,
        pause: float = PAUSE_SECONDS,
        patience: float = PATIENCE_SECONDS,
    ) -> Pending[list[Moved]]:
        """Spreads the slots of tables evenly over owners, while trainers train.

        Rows are copied in the background, with all that belongs to them, through this process. Then look-ups wait for a
        moment, until the passes that use rows of the owner have ended, and the slots change their owner. Trainers go on
        with the new one by themselves.

        Args:
            tables: Tables or their names; None for all of the owners.
            owners: Names of the owners that are to have the slots, and no others; None for all owners of this client,
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
                slots or lose its last. Or a table was made by another client, whose owners may be others.
            NameConflictError: Something else has the name of the table on an owner.
            TooLargeError: An owner would have more rows than it may.
        """

        targets: list[str] | None = None if owners is None else listed(owners)

        def plan(routing: Routing) -> list[placement.Step]:
            return placement.even(routing, self._tables.sessions.names if targets is None else targets)

        return Pending.run(self._loop, self._moved(tables, targets, plan, pause, patience))

    def drain(
        self,
        owner: str,
        to: str | Sequence[str] | None = None,
        tables: Table | str | Iterable[Table | str] | None = None,
        *,
        pause: float = PAUSE_SECONDS,
        patience: float = PATIENCE_SECONDS,
    ) -> Pending[list[Moved | MovedObjects]]:
        """Moves everything that has a name away from an owner, so that it may be stopped for good: the slots of tables
        as `rebalance` does, and other objects as `move` does.

        Args:
            owner: The owner that is to have nothing.
            to: The owner that gets it, or several that share the slots, and each of which gets some of the other
                objects; None for all others of this client.
            tables: Moves the slots of these tables, and nothing else.
            pause, patience: As for `rebalance` and `move`.

        Returns, Raises:
            As `rebalance` and `move`. What can move has moved when an error is raised; the first of several.
        """
        targets: list[str] | None = None if to is None else listed(to)

        def others() -> list[str]:
            return [name for name in self._tables.sessions.names if name != owner] if targets is None else targets

        def plan(routing: Routing) -> list[placement.Step]:
            return placement.away(routing, owner, others())

        async def drained() -> list[Moved | MovedObjects]:
            await self._tables.sessions.all_of([owner])
            made: list[Moved | MovedObjects] = []
            failed: list[PsError] = []
            try:
                made += await self._moved(tables, [owner], plan, pause, patience)
            except PsError as error:
                failed.append(error)
            if tables is None:
                sessions = await self._tables.sessions.all_of([owner, *others()])
                drain = Drain(sessions[0], sessions[1:], pause, patience)
                made += await drain.run()
                failed += drain.failed
            if failed:
                raise failed[0]
            return made

        return Pending.run(self._loop, drained())

    def move(
        self,
        target: RemoteObject | DistributedOptimizer | str,
        to: str,
        *,
        owner: str = "",
        pause: float = PAUSE_SECONDS,
        patience: float = PATIENCE_SECONDS,
    ) -> Pending[MovedObjects]:
        """Moves a named object to another owner, while trainers train, with what belongs to it: a module with its
        optimizers, and these with their schedulers and all other modules that they step.

        What the objects are is copied in the background, through this process, and then what has changed since. Then
        requests for them wait for a moment, until the passes that use them have ended, and they change their owner.
        Handles, of all trainers, go on with the new one by themselves.

        Args:
            target: The object, or its name. A table moves with `rebalance` and `drain`.
            to: Name of the owner that gets it.
            owner: Name of the owner that has the object of that name; empty for the first.
            pause: The most seconds for which requests wait. A move that finds no moment in which passes end within it
                is tried again.
            patience: The most seconds for which such a moment is looked for. Passes that still use the objects then are
                lost: `run` repeats them.

        Raises:
            InvalidArgumentError: They cannot move; the message says why. Or an owner has no log, or the handle was made
                by another client.
            NameConflictError: The other owner has another object of such a name.
            DeadlineExceededError: The pause is too short; nothing has moved.
            UnknownNameError: There is no such object or owner.
        """
        return Pending.run(self._loop, self._move(target, to, owner, pause, patience))

    async def _move(
        self, target: RemoteObject | DistributedOptimizer | str, to: str, owner: str, pause: float, patience: float
    ) -> MovedObjects:
        (other,) = await self._tables.sessions.all_of([to])
        if isinstance(target, str):
            return await ObjectMove(self.session(owner), other, [target], pause).run(patience)
        (part, *others) = named_parts(target)
        if others:
            raise InvalidArgumentError(f"{target!r} is on several owners: move a module, and its part goes with that")
        self._check_own(target, part.session)
        return await ObjectMove(part.session, other, [part.name], pause).run(patience)

    async def _moved(
        self,
        tables: Table | str | Iterable[Table | str] | None,
        owners: Sequence[str] | None,
        plan: Callable[[Routing], list[placement.Step]],
        pause: float,
        patience: float,
    ) -> list[Moved]:
        chosen = listed(tables) if tables is not None else await self._all_tables(owners)
        for each in chosen:
            if not isinstance(each, str):
                self._check_own(each, _session_of(each))
        made: list[Moved] = []
        failed: list[PsError] = []
        for each in chosen:
            try:
                table = await self.table(each) if isinstance(each, str) else each
                for step in plan(await table.follower.follow_all()):
                    made.append(await Move(self._tables, table, *step, pause).run(patience))
            except PsError as error:  # the others can move all the same
                failed.append(error)
        if failed:
            raise failed[0]
        return made

    def _check_own(self, target: object, session: Session) -> None:
        """What moves to owners of this client is on owners of this client: the names of others may be the same."""
        if session.trainer != self.trainer:
            raise InvalidArgumentError(
                f"{target!r} was made by another client, and its owners may be others than those of this one: "
                "move it with that client, or give its name"
            )

    async def _all_tables(self, owners: Sequence[str] | None) -> list[str]:
        """Names of the tables of some owners, or of all that this client is connected to."""
        names: dict[str, None] = {}
        request = Request(status=StatusRequest())
        sessions = self._tables.sessions
        for session in await sessions.all_of(sessions.names if owners is None else [*owners, *sessions.names]):
            status = await session.submit(request, None, lambda reply, _: reply.status)
            names.update((each.name, None) for each in status.tables)
        return sorted(names)


def _session_of(given: object) -> Session:
    """The session with one owner of a table. Raises `InvalidArgumentError` if this is none."""
    shards = getattr(given, "shards", None)
    if not isinstance(shards, dict):
        raise InvalidArgumentError(f"what is moved between owners are tables, or their names, not {given!r}")
    session: Session = next(iter(shards.values())).session
    return session
