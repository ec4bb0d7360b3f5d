"""The sessions of one client: opened together, found by name, closed together."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ps_wire.close_names import hint
from ps_wire.errors import InvalidArgumentError, UnknownNameError
from ps_wire.v1.operations_pb2 import LookupRequest
from trainer_client.handles.other_owners import OtherOwners
from trainer_client.session.session import Session

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ps_wire.connections.connection import Connector
    from trainer_client.session.settings import Settings


class Sessions:
    """One session with each owner of a client.

    Args:
        trainer: The id of the trainer, 16 bytes.
        connectors: One per owner.
        settings: Timeouts, and what else the sessions share.
        dial: Makes a connector for an address, to reach further owners; without it no others are reached.

    Attributes:
        by_owner: The sessions by the names of their owners.
        opening: Those that were opened by address.
        others: Finds further owners, and holds references to their objects.
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
        self._patience = settings.connect_timeout

    async def open(self, names: Sequence[str]) -> None:
        """Connects to every owner.

        Args:
            names: Further owners, looked up in the directory of the first owner.

        Raises:
            UnavailableError: An owner cannot be reached in time.
            UnknownNameError: An owner has not entered the directory in time.
            InvalidArgumentError: Two owners have the same name.
        """
        try:
            await asyncio.gather(*(session.open() for session in self.opening))
            for session in self.opening:
                if session.owner in self.by_owner:
                    raise InvalidArgumentError(
                        f"two of the owners are called {session.owner!r}: start each under its own --name"
                    )
                self.by_owner[session.owner] = session
            if names:
                await self._find(names)
        except BaseException:
            await self.close(fails=True)
            raise

    async def _find(self, names: Sequence[str]) -> None:
        """Connects to owners by name; they are the first of the sessions, in this order."""
        directory = self.others.directory = self.of("")

        async def find(name: str) -> Session:
            if name in self.by_owner:
                return self.by_owner[name]
            member = await self.others.ask(directory, LookupRequest(name=name, wait_seconds=self._patience))
            return await self.others.reach(name, member.address)

        found = dict(zip(names, await asyncio.gather(*map(find, names)), strict=True))
        found.update((name, session) for name, session in self.by_owner.items() if name not in found)
        self.by_owner.clear()
        self.by_owner.update(found)

    async def close(self, fails: bool = False) -> None:
        """Closes all sessions; an argument as for `Session.close`."""
        await self.others.close(fails)
        await asyncio.gather(*(session.close(fails) for session in self.opening))

    def told(self) -> str:
        """The owners and their states, for messages; with a directory, also where that is."""
        sessions = list(self.by_owner.values()) or self.opening
        told = ", ".join(f"{each.owner or '?'} at {each.address}, {each.state}" for each in sessions)
        directory = self.others.directory
        if directory is None:
            return told
        return f"the group with its directory at {directory.address}: {told}"

    def of(self, owner: str) -> Session:
        """The session with an owner; with the first owner, if the name is empty.

        Raises:
            UnknownNameError: There is no session with an owner of that name.
        """
        if not owner:
            return next(iter(self.by_owner.values()))
        try:
            return self.by_owner[owner]
        except KeyError:
            known = ", ".join(self.by_owner)
            raise UnknownNameError(
                f"this client is not connected to an owner {owner!r}, only to {known}{hint(owner, self.by_owner)}"
            ) from None
