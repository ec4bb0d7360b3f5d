"""The tables and modules that a client finds on its owners, for exports."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol, TypeVar, cast

from ps_wire.errors import ClosedError, DeadlineExceededError, InvalidArgumentError, UnavailableError, UnknownNameError
from ps_wire.tables.names import SHARD

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from ps_wire.status import OwnerStatus
    from trainer_client.handles.handles import RemoteModule, RemoteObject
    from trainer_client.pending import Pending
    from trainer_client.serving.snapshots import Snapshot
    from trainer_client.session.session import Session
    from trainer_client.tables.table import Table


T = TypeVar("T")


class OwnersGoneError(Exception):
    """None of the owners is there that had an object. An export raises `UnavailableError` instead."""


_MOST: Final = 10_000
"""The most entries that an owner lists."""


class Client(Protocol):
    """What they need of a client."""

    @property
    def owners(self) -> list[str]: ...
    @property
    def sessions(self) -> Mapping[str, Session]: ...
    def find_owners(self) -> Pending[list[str]]: ...
    def table(self, name: str) -> Pending[Table]: ...
    def attach(self, target: str, owner: str = "") -> Pending[RemoteObject]: ...
    def status(self, owner: str = "", *, most: int = 0) -> Pending[OwnerStatus]: ...
    def snapshot(self, name: str) -> Pending[Snapshot]: ...


class LiveObjects:
    """As `Source` of an export. Its methods raise `ClosedError` if the client has given up an owner for good.
    `in_group` says whether the client finds the owners in a directory."""

    def __init__(self, ps: Client, in_group: bool) -> None:
        self._ps = ps
        self._in_group = in_group

    async def find_owners(self) -> None:
        """As `Source.find_owners`."""
        if self._in_group:
            await self._ps.find_owners()

    async def names(self) -> tuple[list[str], list[str]]:
        """As `Source.names`."""
        self._check()
        found = [await self._answer(owner, self._ps.status(owner, most=_MOST)) for owner in self._ps.owners]
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

    async def find_table(self, name: str, had: Collection[str] = ()) -> Table:
        """As `Source.find_table`."""
        self._check()
        try:
            return await self._ps.table(name)
        except (InvalidArgumentError, UnknownNameError) as error:
            is_there = any(each.class_name == SHARD for each in await self._handles(name, had))
            if isinstance(error, InvalidArgumentError) and (is_there or not had):
                raise
            if is_there:
                with suppress(UnknownNameError):
                    return await self._ps.table(name)  # it may have been made meanwhile
            if is_there and self._in_group:
                raise UnavailableError(f"table {name!r} has rows on an owner that is not there: {error}") from None
            if is_there:
                raise InvalidArgumentError(f"{error}; connect with the addresses of all of its owners") from None
            self._check_owners("table", name, had)
            raise UnknownNameError(str(error)) from None

    async def find_module(self, name: str, had: Collection[str] = ()) -> RemoteModule:
        """As `Source.find_module`: the module of that name, on whichever owner it is."""
        self._check()
        found = await self._handles(name, had)
        modules = [each for each in found if "forward" in each.methods]
        if len(modules) > 1:
            owners = " and ".join(each.owner for each in modules)
            raise InvalidArgumentError(f"{owners} have a module {name!r} each, and an export has one of a name")
        if not modules and found and not had:
            raise InvalidArgumentError(f"{name!r} is {found[0]}, and no module that could be exported")
        if not modules:
            self._check_owners("module", name, had)
            raise UnknownNameError(f"there is no module {name!r} on {', '.join(self._ps.owners)}")
        return cast("RemoteModule", modules[0])

    async def _handles(self, name: str, had: Collection[str]) -> list[RemoteObject]:
        """What has a name, on the owners that are there."""
        found = {}
        for owner in self._there(had):
            with suppress(UnknownNameError):
                each = await self._answer(owner, self._ps.attach(name, owner))
                found[each.owner, each.ref.object_id] = each  # two owners may tell of one that has moved
        return list(found.values())

    async def _answer(self, owner: str, asked: Pending[T]) -> T:
        """What an owner answers. Without a directory, nobody says whether one that is away has left for good."""
        try:
            return await asked
        except DeadlineExceededError as error:
            if self._in_group:
                raise
            raise DeadlineExceededError(
                f"{error}; this client was told that {owner} is one of its owners, and waits for it: if it has left "
                "for good, begin the export again without it"
            ) from None

    def _there(self, had: Collection[str]) -> list[str]:
        """All owners, and those of these that the client is connected to besides, because something has moved there."""
        rest = [each for each in had if each in self._ps.sessions and self._ps.sessions[each].state == "connected"]
        return list(dict.fromkeys([*self._ps.owners, *rest]))

    def _check_owners(self, kind: str, name: str, had: Collection[str]) -> None:
        """Raises `OwnersGoneError` if none of the owners is there that could say that they have something no more."""
        if had and not set(had) & set(self._there(had)):
            raise OwnersGoneError(
                f"{kind} {name!r} was exported from {' and '.join(sorted(had))}, and is on no owner that is there now; "
                "if it has gone for good, name what to export, or export into a new folder"
            )

    def _check(self) -> None:
        for owner in self._ps.owners:
            session = self._ps.sessions.get(owner)
            if session is None:
                raise UnavailableError(f"the session with owner {owner!r} is being opened anew")
            if session.requests.closed is not None and session.requests.when_wanted is None:
                why = f"{session.requests.closed}; connect with a longer reconnect_timeout="
                raise ClosedError(f"this client has given up {owner}: {why}")


def _modules(status: OwnerStatus) -> set[str]:
    """The names of the modules of an owner that have parameters or buffers."""
    named = {each.name for each in status.objects if each.name and each.bytes and not each.snapshot}
    return named - {each.name for each in status.tables}
