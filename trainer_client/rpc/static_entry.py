"""The entry of this process in a group whose members it is told by whoever started it."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from ps_wire.errors import UnavailableError
from ps_wire.runtime.noop import noop
from ps_wire.v1.operations_pb2 import Member

if TYPE_CHECKING:
    from ps_service.group.static_members import StaticMembers
    from ps_service.server import Server

_log = logging.getLogger(__name__)


class StaticEntry:
    """Keeps the directory of this process as it is told. Nobody is asked, and nobody is told anything from here."""

    def __init__(self, server: Server, address: str, told: StaticMembers) -> None:
        self._name = server.engine.name
        self._directory = server.engine.directory
        self._address = address
        self._told = told

    @property
    def member(self) -> Member:
        """As the directory describes it."""
        own = next(each for each in self._told.members(self._address) if each.name == self._name)
        return Member(name=own.name, address=own.address, id=own.id, is_owner=True)

    async def begin(self, seconds: float) -> None:
        """Waits for the names of the members. Raises `UnavailableError` if they are not told in time."""
        try:
            async with asyncio.timeout(seconds):
                await self._told.complete()
        except TimeoutError:
            raise UnavailableError(
                f"{self._name!r} was not told the members of its group within {seconds:g} s"
            ) from None
        self._told.when_changed = self._mirror
        self._mirror()
        _log.info("%s has joined the group as number %d", self._name, self.member.id)

    async def end(self) -> None:
        """Follows no changes any more."""
        self._told.when_changed = noop

    def _mirror(self) -> None:
        self._directory.mirror(self._told.members(self._address))
