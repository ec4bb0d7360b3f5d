"""The sessions of one client: opened together, found by name, closed together; and what the client shows of them."""

from __future__ import annotations

import asyncio
import sys
import warnings
import weakref
from typing import TYPE_CHECKING, Final

from ps_wire.arguments import check_text
from ps_wire.close_names import hint
from ps_wire.errors import InvalidArgumentError, UnknownNameError
from ps_wire.runtime import forks
from ps_wire.v1.operations_pb2 import LookupRequest
from trainer_client.client.group import Group
from trainer_client.handles.other_owners import OtherOwners
from trainer_client.pending import Pending
from trainer_client.session.session import Session
from trainer_client.transport.ray_owners import RayOwners
from trainer_client.transport.resolvers import Candidates, Find, listed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ps_wire.connections.connection import Connector
    from trainer_client.session.settings import Settings


Directory = Candidates | Find | None
"""How a client finds owners by name: by asking one of these, or with a function of the program."""


_NOT_CLOSED: Final = (
    "the client of {}, connected at {}, was not closed, and its owners keep what it holds until the program ends: use "
    "`async with tc.connect(…) as ps:` or `with tc.connect(…) as ps:`, or call its close()"
)


def warn_of_unclosed(sessions: Sessions, loop: asyncio.AbstractEventLoop, where: str) -> None:
    """Warns of a client that was collected, or is left at exit, and was not closed. Its parent has it in a fork."""
    if not forks.is_foreign(loop):
        warnings.warn(_NOT_CLOSED.format(sessions.told(), where or "?"), ResourceWarning, stacklevel=1)


class Sessions:
    """One session with each owner of a client.

    `by_owner` has them by the names of the owners, `opening` those that were opened by address, `others` finds further
    owners, and `group` is None if the client was told which owners to connect to.
    """

    def __init__(
        self,
        trainer: bytes,
        connectors: Sequence[Connector],
        settings: Settings,
        dial: Callable[[str], Connector] | None,
    ) -> None:
        self.by_owner: dict[str, Session] = {}
        self.others = OtherOwners(trainer, settings, self.by_owner, dial)
        self.opening = [Session(each, trainer, settings, self.others) for each in connectors]
        self.group: Group | None = None
        self._patience = settings.connect_timeout

    async def open(self, names: Sequence[str] = (), directory: Directory = None) -> None:
        """Connects to every owner: by name if names are looked up in a directory, else to all of its group. The program
        may give a function in the place of a directory, or the owners of a cluster on Ray.

        Closes all sessions if it fails.
        """
        try:
            await asyncio.gather(*(session.open() for session in self.opening))
            for session in self.opening:
                if session.owner in self.by_owner:
                    raise InvalidArgumentError(
                        f"two of the owners are called {session.owner!r}: start each under its own --name"
                    )
                self.by_owner[session.owner] = session
            if isinstance(directory, Candidates):
                await self._ask(directory)
            elif directory is not None:
                self.others.find_address = directory
            if isinstance(directory, RayOwners) and not names:
                names = await listed(directory.names, self._patience)
            if names:
                await self._find(names, self.others.directory)
            elif directory is not None:
                self.group = Group(self.others, self.by_owner, self._patience)
                await self.group.find()
        except BaseException:
            await self.close(fails=True)
            raise

    async def _ask(self, candidates: Candidates) -> None:
        """Connects to the owner that is asked for others."""
        if candidates.is_plain:
            self.others.directory = await self.others.connect(candidates.given[0])
        else:
            self.others.candidates = candidates
            await self.others.asked()

    async def _find(self, names: Sequence[str], directory: Session | None) -> None:
        """Connects to owners by name; they are the first of the sessions, in this order."""

        async def find(name: str) -> Session:
            if name in self.by_owner:
                return self.by_owner[name]
            if directory is None:
                return await self.others.reach(name)
            member = await self.others.ask(directory, LookupRequest(name=name, wait_seconds=self._patience))
            return await self.others.reach(name, member.address)

        found = dict(zip(names, await asyncio.gather(*map(find, names)), strict=True))
        found.update((name, session) for name, session in self.by_owner.items() if name not in found)
        self.by_owner.clear()
        self.by_owner.update(found)

    async def close(self, fails: bool = False) -> None:
        """Closes all sessions, also if the caller is cancelled meanwhile; an argument as for `Session.close`."""
        await asyncio.shield(self._close(fails))

    async def _close(self, fails: bool) -> None:
        await self.others.close(fails)
        await asyncio.gather(*(session.close(fails) for session in self.opening))

    def told(self) -> str:
        """The owners and their states, for messages; with a directory, also where that is."""
        sessions = [self.by_owner[name] for name in self._connected()] or self.opening
        told = ", ".join(f"{each.owner or '?'} at {each.address}, {each.state}" for each in sessions)
        directory = self.others.directory
        if directory is None:
            return told
        return f"the group with its directory at {directory.address}: {told}"

    @property
    def names(self) -> list[str]:
        """Names of the owners that the client was told, in their order; or of all owners of its group."""
        return list(self.by_owner if self.group is None else self.group.owners)

    @property
    def in_group(self) -> bool:
        """Whether these are the owners of a group: they join and leave, and other trainers may know others."""
        return self.group is not None

    def of(self, owner: str) -> Session:
        """The session with an owner; with the first one, if the name is empty. Raises `UnknownNameError` if none."""
        check_text("the name of an owner", owner)
        owner = owner or next(iter(self.by_owner if self.group is None else self.group.owners))
        try:
            return self.by_owner[owner]
        except KeyError:
            known = ", ".join(self._connected())
            joined = "" if self.group is None else " (ps.find_owners() connects to those that have joined since)"
            raise UnknownNameError(
                f"this client is not connected to an owner {owner!r}, only to {known}{joined}"
                f"{hint(owner, self.by_owner)}"
            ) from None

    def _connected(self) -> list[str]:
        """Names of all owners, those of the group first."""
        return [name for name in dict.fromkeys([*self.names, *self.by_owner]) if name in self.by_owner]

    async def all_of(self, owners: Iterable[str]) -> list[Session]:
        """The sessions with several owners. In a group, unknown ones are looked for among those that have joined."""
        owners = list(owners)
        for each in owners:
            check_text("the name of an owner", each)
        if self.group is not None and not self.by_owner.keys() >= set(owners):
            await self.group.find()
        return [self.of(each) for each in owners]


class Connected:
    """The owners that one trainer is connected to.

    Attributes: `trainer` is the id of this trainer, 16 random bytes; `closed` says whether it was closed; `others`
    finds further owners, and holds references to their objects.
    """

    def __init__(self, trainer: bytes, sessions: Sessions) -> None:
        self.trainer = trainer
        self.closed = False
        self._loop = asyncio.get_running_loop()
        self._sessions = sessions
        self.others = sessions.others
        # Warns if it is not closed.
        self._unclosed: weakref.finalize[..., Connected] | None = None

    async def open(self, names: Sequence[str] = (), directory: Directory = None) -> None:
        """Connects to every owner; arguments and errors as for `Sessions.open`."""
        await self._sessions.open(names, directory)

    def watch(self, where: str) -> None:
        """Has the program warned if it does not close it. `where` is the line of the program that has connected."""
        self._unclosed = weakref.finalize(self, warn_of_unclosed, self._sessions, self._loop, where)

    async def close(self, error: BaseException | None = None) -> None:
        """Closes all sessions; owners free what this trainer held. Does nothing the second time, and in a fork.

        Requests without an answer are not reported if an exception ends the program: `error`, or that which is being
        handled.
        """
        if self._unclosed is not None:
            self._unclosed.detach()
        fails = (error or sys.exception()) is not None
        if not forks.is_foreign(self._loop):
            self.closed = True
            await self._sessions.close(fails)

    @property
    def owners(self) -> list[str]:
        """Names of the owners, in the order in which they were given to `connect`.

        With `directory` alone, those of the group when it was asked last, by `connect` or `find_owners`. They are in
        the order of their numbers in the directory: one that joins comes last, for all trainers.
        """
        return self._sessions.names

    def find_owners(self, at_least: int = 1) -> Pending[list[str]]:
        """Asks the directory for the owners of the group, and connects to those that have joined since.

        The new ones then stand in `owners`, and tables that are made from now on use them, too. Those that have left
        are removed from it. A session that was given up is opened anew, if the owner is in the directory again.

        Args:
            at_least: How many owners there have to be. They are waited for as long as `connect_timeout`.

        Returns:
            `owners`.

        Raises:
            InvalidArgumentError: The client was told its owners, and not a directory alone.
            UnavailableError: The directory or an owner of the group cannot be reached in time, or there are not enough
                owners in time. `owners` is as it was.
        """
        group = self._sessions.group
        if group is None:
            raise InvalidArgumentError(
                "this client was told which owners to connect to: connect(directory='host:port'), without names, finds "
                "all owners of a group, also those that join later"
            )
        return Pending.run(self._loop, group.find(at_least))

    @property
    def sessions(self) -> Mapping[str, Session]:
        """The sessions, by the name of their owner."""
        return self._sessions.by_owner

    @property
    def trainer_name(self) -> str:
        """The first eight digits of its id, by which owners name it. The whole id is a secret."""
        return self.trainer.hex()[:8]

    def session(self, owner: str = "") -> Session:
        """The session with an owner, or with the first; `UnknownNameError` if the client is not connected to that."""
        return self._sessions.of(owner)
