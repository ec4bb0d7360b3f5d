"""The members of a group, as whoever started this owner tells them, on a line each."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import TYPE_CHECKING, Final

from ps_service.group.formation import MemberEntry
from ps_wire.errors import UnavailableError, UnknownNameError
from ps_wire.runtime.noop import noop

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger(__name__)

STDIN: Final = "stdin"
"""The `directory` of an owner that is told the members on its standard input."""

_LINE: Final = re.compile(r"(?P<name>[\w.-]{1,127})(?:=(?P<address>\S+:\d{1,5}))?")


class StaticMembers:
    """The owners of a group, of which this one has the name `own`.

    A line is `NAME`, or `NAME=HOST:PORT` for one that serves or has moved. The numbers of members follow the order in
    which their names came. The first empty line says that all names were told. To be used on one event loop.
    """

    def __init__(self, own: str) -> None:
        self._own = own
        self._addresses: dict[str, str] = {}
        self._complete = asyncio.Event()
        self.when_changed: Callable[[], object] = noop

    def hear(self, line: str) -> None:
        """Takes a line. One that cannot be read is reported, and changes nothing."""
        if not line.strip():
            self._complete.set()
        elif (found := _LINE.fullmatch(line.strip())) is None:
            _log.warning("a line about the members of the group is NAME or NAME=HOST:PORT, and not %r", line)
        else:
            self._addresses[found["name"]] = found["address"] or self._addresses.get(found["name"], "")
            self.when_changed()

    async def complete(self) -> None:
        """Waits until all names were told."""
        await self._complete.wait()

    def members(self, address: str) -> list[MemberEntry]:
        """The members whose addresses are known; this owner, which serves at `address`, among them."""
        known = {**self._addresses, self._own: address}
        return [
            MemberEntry(name, where, number, b"", True) for number, (name, where) in enumerate(known.items()) if where
        ]

    async def find(self, name: str) -> str:
        """Where a member is. Raises `UnavailableError` if it does not serve yet, `UnknownNameError` if there is none of
        that name."""
        if address := self._addresses.get(name):
            return address
        if name in self._addresses:
            raise UnavailableError(f"{name!r} is being started, or moves")
        raise UnknownNameError(f"the group has no member {name!r}; its members are: {', '.join(self._addresses)}")
