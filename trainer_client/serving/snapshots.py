"""Snapshots: objects as they were at one moment, which are read while training goes on."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

import torch

from ps_wire.errors import InvalidArgumentError, NameConflictError, PsError, RowsMovedError, UnknownNameError
from ps_wire.v1.frames_pb2 import Request
from ps_wire.v1.operations_pb2 import SnapshotPart, SnapshotRequest
from trainer_client.handles.handles import RemoteModule, RemoteObject, handle_from
from trainer_client.handles.listed import listed
from trainer_client.pending import Pending
from trainer_client.serving.pinned_module import PinnedModule
from trainer_client.serving.pinned_table import PinnedTable
from trainer_client.tables.table import Table

if TYPE_CHECKING:
    from ps_wire.codec.payload import PayloadReader
    from ps_wire.v1.frames_pb2 import Reply
    from trainer_client.session.session import Session
    from trainer_client.tables.creation import Tables

_MOST_ATTEMPTS: Final = 5
"""How often it is made again because rows have moved meanwhile."""

Sessions = Mapping[str, "Session"]
Part = tuple[str, str]
"""An owner, and the name of an object there."""


class Snapshot:
    """Modules and tables as they were at one moment. Made by `Client.snapshot`.

        pinned = await ps.snapshot("monday", [net, items])
        rows = await pinned[items].read(ids)
        scores = await pinned[net].read(x)

    Everything that one owner has in it is as of one moment, between the same steps of the optimizers; owners have
    moments that are milliseconds apart. It is kept in the memory of the owners until it is removed, or one of them
    ends: to keep it longer, export it with `ps.export(path, snapshot="monday")`.

    Attributes:
        name: Its name.
        objects: All that is in it: `PinnedTable` and `PinnedModule`.
    """

    def __init__(
        self,
        name: str,
        id: bytes,
        parts: Mapping[Part, RemoteObject],
        modules: Mapping[Part, PinnedModule],
        tables: Mapping[str, PinnedTable],
    ) -> None:
        self.name: Final = name
        self._id: Final = id
        self._parts: Final = parts
        self.objects: Final[Sequence[PinnedTable | PinnedModule]] = [*tables.values(), *modules.values()]
        self._sessions = {owner: each.session for (owner, _), each in parts.items()}
        self._modules = modules
        self._tables = tables
        self._loop = next(iter(self._sessions.values())).loop

    def __getitem__(self, target: Any) -> Any:
        """The object as it was, for a handle of it or its name. Raises `KeyError` if it is not in the snapshot, or
        several owners have one of that name."""
        found: Sequence[PinnedTable | PinnedModule]
        if isinstance(target, Table):
            found = [each for name, each in self._tables.items() if name == target.name]
        elif isinstance(target, RemoteModule):
            # It may have moved to another owner since.
            own = [each for part, each in self._modules.items() if part == (target.owner, target.name)]
            found = own or [each for (_, name), each in self._modules.items() if name == target.name]
        else:
            found = [each for each in self.objects if each.name == target]
        if len(found) != 1:
            what = repr(getattr(target, "name", target))
            several = "several owners have one of that name: give its handle" if found else f"it has {self._names()}"
            raise KeyError(f"snapshot {self.name!r} has not one object {what}; {several}")
        return found[0]

    def nbytes(self) -> Pending[dict[str, int]]:
        """What it takes of the memory of each owner, in bytes: copies of modules, and of those rows that have changed
        since."""

        async def asking() -> dict[str, int]:
            found = dict.fromkeys(self._sessions, 0)
            answers = await asyncio.gather(*map(_described, self._parts.values()))
            for (owner, _), described in zip(self._parts, answers, strict=True):
                found[owner] += described["bytes"]
            return found

        return Pending.run(self._loop, asking())

    def remove(self) -> Pending[None]:
        """Removes it from all of its owners. Nobody can read it any more, and the objects stay as they are."""
        return Pending.run(self._loop, _remove(self._sessions, self.name, self._id))

    # As `Source` of an export

    async def find_owners(self) -> None:
        """It stays on the owners that it was made on."""

    async def find_table(self, name: str, had: Collection[str] = ()) -> PinnedTable:
        """The table of that name. Raises `UnknownNameError`."""
        return self._tables[name] if name in self._tables else self._lacks(name, "table")

    async def find_module(self, name: str, had: Collection[str] = ()) -> PinnedModule:
        """The module of that name. Raises `UnknownNameError`, and `InvalidArgumentError` if several owners have one."""
        found = {owner: each for (owner, of), each in self._modules.items() if of == name}
        if len(found) > 1:
            owners = " and ".join(found)
            raise InvalidArgumentError(f"{owners} have a module {name!r} each, and an export has one of a name")
        return found.popitem()[1] if found else self._lacks(name, "module")

    async def names(self) -> tuple[list[str], list[str]]:
        """The names of the tables and of the modules in it."""
        return list(self._tables), [name for _, name in self._modules]

    def _lacks(self, name: str, kind: str) -> NoReturn:
        raise UnknownNameError(f"snapshot {self.name!r} has no {kind} {name!r}; it has {self._names()}")

    def _names(self) -> str:
        return ", ".join(each.name for each in self.objects)

    def __repr__(self) -> str:
        return f"<Snapshot {self.name!r} of {self._names()}>"


class SnapshotMethods:
    """What a client does with snapshots."""

    _tables: Tables
    _loop: asyncio.AbstractEventLoop

    def snapshot(
        self, name: str, objects: Table | RemoteModule | Sequence[Table | RemoteModule] | None = None
    ) -> Pending[Snapshot]:
        """Keeps modules and tables as they are now, to read them while training goes on: for evaluation, to compare
        two versions on the same requests, and to export one version.

            monday = await ps.snapshot("monday", [net, items])
            async for epoch in training():
                before, now = await monday[net].read(x), await net.read(x)
            await monday.remove()

        Everything that one owner has in it is as between the same steps. Several owners are asked at the same time, and
        have moments that are milliseconds apart. A module is copied. A row of a table is copied when it changes or goes
        for the first time, so that a snapshot takes at most as much memory as the rows that the table had; what the
        optimizer keeps is not in it. It is gone when an owner ends: export it to keep it longer.

        Args:
            name: 1 to 64 letters, digits, "_", "." and "-".
            objects: Tables and modules that have a name, on any owners. None for the snapshot that was made under this
                name, by any program.

        Raises:
            InvalidArgumentError: The name is none, or one of the objects cannot be in a snapshot, such as a module that
                looks up in a table which is not in it, or has rows on other owners. Nothing was made.
            NameConflictError: There is a snapshot of that name already. Nothing was made.
            UnknownNameError: There is no snapshot of that name; or an owner that has a part of it was started again.
            UnavailableError: An owner is too busy.
        """
        if not isinstance(name, str):
            raise InvalidArgumentError(f"a snapshot is named by a text, not {name!r}")
        sessions = self._tables.sessions.by_owner
        if objects is None:
            return Pending.run(self._loop, _opened(name, _there(sessions)))
        return Pending.run(self._loop, _made(name, sessions, listed(objects)))


async def _made(name: str, sessions: Sessions, objects: Sequence[Any]) -> Snapshot:
    known = await asyncio.gather(*(_ask(each, SnapshotRequest(name=name)) for each in _there(sessions).values()))
    for answer in known:
        if answer.objects:
            raise NameConflictError(
                f"there is a snapshot {name!r} of {', '.join(map(_of, answer.objects))} already: give this one another "
                f"name, or remove that one, (await ps.snapshot({name!r})).remove()"
            )
    for attempt in range(_MOST_ATTEMPTS):
        parts, id = await _parts_of(objects), secrets.token_bytes(16)
        of_owners = {owner: sessions[owner] for owner in {owner for owner, _ in parts}}
        try:
            await _make(name, id, of_owners, parts)
            return await _opened(name, of_owners)
        except RowsMovedError:
            with suppress(PsError):
                await _remove(of_owners, name, id)
            if attempt == _MOST_ATTEMPTS - 1:
                raise
    raise AssertionError


async def _parts_of(objects: Sequence[Any]) -> dict[Part, RemoteObject]:
    parts: dict[Part, RemoteObject] = {}
    for each in objects:
        if isinstance(each, Table):
            routing = await each.follower.follow_all()
            parts |= {(owner, each.name): each.shards[owner] for owner in routing.owners}
        elif isinstance(each, RemoteModule):
            if not each.name:
                raise InvalidArgumentError(f"a snapshot is of objects that have a name: make {each} with name=")
            parts[each.owner, each.name] = each
        else:
            raise InvalidArgumentError(f"a snapshot is of modules and tables, and not of {each!r}")
    if not parts:
        raise InvalidArgumentError("a snapshot is of at least one module or table")
    return parts


async def _make(name: str, id: bytes, sessions: Sessions, parts: Mapping[Part, RemoteObject]) -> None:
    listed = [SnapshotPart(owner=owner, name=each) for owner, each in parts]
    asked = []
    for owner, session in sessions.items():
        handles = [each.ref.to_message() for (of, _), each in parts.items() if of == owner]
        asked.append(_ask(session, SnapshotRequest(name=name, id=id, objects=handles, parts=listed)))
    answers = await asyncio.gather(*asked, return_exceptions=True)
    failed = [each for each in answers if isinstance(each, BaseException)]
    if failed:
        with suppress(PsError):  # an owner that is away has nothing of it, or loses it
            await _remove(sessions, name, id)
        raise failed[0]


async def _opened(name: str, sessions: Sessions) -> Snapshot:
    """A snapshot of these owners. Raises `UnknownNameError` if there is none, or a part of it is gone."""
    answers = await asyncio.gather(*(_ask(each, SnapshotRequest(name=name)) for each in sessions.values()))
    objects: dict[Part, RemoteObject] = {}
    wanted: set[Part] = set()
    ids = {each.id for each in answers if each.objects}
    if len(ids) > 1:
        raise NameConflictError(f"several programs have made a snapshot {name!r}, on different owners at the same time")
    for owner, answer in zip(sessions, answers, strict=True):
        objects |= {(owner, _of(each)): each for each in answer.objects}
        wanted |= {(each.owner, each.name) for each in answer.parts}
    if not wanted:
        raise UnknownNameError(f"there is no snapshot {name!r} on {', '.join(sessions)}")
    if lost := wanted - objects.keys():
        owner, lacking = sorted(lost)[0]
        raise UnknownNameError(
            f"snapshot {name!r} has lost {lacking!r}, because owner {owner!r} was started again, or this client is not "
            "connected to it: a snapshot is in the memory of its owners"
        )
    described = dict(zip(objects, await asyncio.gather(*map(_described, objects.values())), strict=True))
    modules, rows = {}, dict[str, dict[str, RemoteObject]]()
    for (owner, each), handle in objects.items():
        if "state" in handle.methods:
            modules[owner, each] = PinnedModule(each, handle, described[owner, each]["class_name"])
        else:
            rows.setdefault(each, {})[owner] = handle
    tables = {
        each: PinnedTable(parts, {owner: described[owner, each] for owner in parts}) for each, parts in rows.items()
    }
    return Snapshot(name, ids.pop(), objects, modules, tables)


def _there(sessions: Sessions) -> Sessions:
    """The sessions of owners that are connected; all, if none is. An owner that is away is not waited for."""
    return {owner: each for owner, each in sessions.items() if each.state == "connected"} or sessions


async def _remove(sessions: Sessions, name: str, id: bytes) -> None:
    request = SnapshotRequest(name=name, id=id, remove=True)
    await asyncio.gather(*(_ask(each, request) for each in sessions.values()))


def _of(part: RemoteObject) -> str:
    """The name of the object of which this is in a snapshot."""
    return part.name.rpartition("@")[0]


def _described(part: RemoteObject) -> Pending[Any]:
    with torch.no_grad():
        return part.options(seed=0).call("describe")


class _Answer(NamedTuple):
    """What an owner has of a snapshot, what belongs to that on all owners, and its id."""

    objects: list[RemoteObject]
    parts: list[SnapshotPart]
    id: bytes


def _ask(session: Session, request: SnapshotRequest) -> Pending[_Answer]:
    def read(reply: Reply, payload: PayloadReader) -> _Answer:
        told = reply.snapshot
        return _Answer([handle_from(session, each) for each in told.objects], list(told.parts), told.id)

    return session.submit(Request(snapshot=request), None, read)
