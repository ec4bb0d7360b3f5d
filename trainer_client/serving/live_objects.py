"""The tables and modules that a client finds on its owners, for exports."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol, cast

from ps_wire.errors import ClosedError, InvalidArgumentError, UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ps_wire.status import OwnerStatus
    from trainer_client.handles.handles import RemoteModule, RemoteObject
    from trainer_client.pending import Pending
    from trainer_client.serving.snapshots import Snapshot
    from trainer_client.session.session import Session
    from trainer_client.tables.table import Table


_MOST: Final = 10_000
"""The most entries that an owner lists."""


class Client(Protocol):
    """What they need of a client."""

    @property
    def owners(self) -> list[str]: ...
    @property
    def sessions(self) -> Mapping[str, Session]: ...
    def table(self, name: str) -> Pending[Table]: ...
    def attach(self, target: str, owner: str = "") -> Pending[RemoteObject]: ...
    def status(self, owner: str = "", *, most: int = 0) -> Pending[OwnerStatus]: ...
    def snapshot(self, name: str) -> Pending[Snapshot]: ...


class LiveObjects:
    """As `Source` of an export. Its methods raise `ClosedError` if the client has given up an owner for good."""

    def __init__(self, ps: Client) -> None:
        self._ps = ps

    async def names(self) -> tuple[list[str], list[str]]:
        """As `Source.names`."""
        self._check()
        found = [await self._ps.status(owner, most=_MOST) for owner in self._ps.owners]
        for status in found:
            # Those with names are listed first.
            if len(status.tables) == _MOST or len([each for each in status.objects if each.name]) == _MOST:
                raise InvalidArgumentError(
                    f"{status.owner} has {_MOST:,} or more tables or other objects with a name, and an export of all "
                    "takes fewer: name those to export"
                )
        tables = {each.name for status in found for each in status.tables}
        modules = {name for status in found for name in _modules(status)}
        return sorted(tables), sorted(modules)

    async def find_table(self, name: str) -> Table:
        """As `Source.find_table`."""
        self._check()
        return await self._ps.table(name)

    async def find_module(self, name: str) -> RemoteModule:
        """As `Source.find_module`: the module of that name, on whichever owner it is."""
        self._check()
        found = []
        for owner in self._ps.owners:
            with suppress(UnknownNameError):
                found.append(await self._ps.attach(name, owner))
        modules = [each for each in found if "forward" in each.methods]
        if len(modules) > 1:
            owners = " and ".join(each.owner for each in modules)
            raise InvalidArgumentError(f"{owners} have a module {name!r} each, and an export has one of a name")
        if not modules and found:
            raise InvalidArgumentError(f"{name!r} is {found[0]}, and no module that could be exported")
        if not modules:
            raise UnknownNameError(f"there is no module {name!r} on {', '.join(self._ps.owners)}")
        return cast("RemoteModule", modules[0])

    def _check(self) -> None:
        for owner in self._ps.owners:
            session = self._ps.sessions.get(owner)  # None while it is opened anew
            if session is not None and session.requests.closed is not None and session.requests.when_wanted is None:
                why = f"{session.requests.closed}; connect with a longer reconnect_timeout="
                raise ClosedError(f"this client has given up {owner}: {why}")


def _modules(status: OwnerStatus) -> set[str]:
    """The names of the modules of an owner that have parameters or buffers."""
    named = {each.name for each in status.objects if each.name and each.bytes and not each.snapshot}
    return named - {each.name for each in status.tables}
