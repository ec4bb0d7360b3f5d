"""Exports tables and modules of owners into a folder, version after version, while they are trained."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import torch

from ps_reader.layout import Manifest, ModuleFile, TableFiles
from ps_wire.errors import (
    DeadlineExceededError,
    DrainingError,
    InternalError,
    InvalidArgumentError,
    OverloadedError,
    PermissionDeniedError,
    RemoteError,
    RowsMovedError,
    SessionLostError,
    StaleHandleError,
    TooLargeError,
    UnavailableError,
    UnknownNameError,
)
from ps_wire.runtime.threads import BLOCKING
from trainer_client.serving.export_folder import Folder
from trainer_client.serving.exported_table import ExportedTable
from trainer_client.serving.live_objects import OwnersGoneError

if TYPE_CHECKING:
    from ps_wire.compression.codec import Codec
    from trainer_client.handles.following import FollowingModule, ModuleChange
    from trainer_client.handles.handles import RemoteModule
    from trainer_client.serving.pinned_module import PinnedModule
    from trainer_client.serving.pinned_table import PinnedChanges, PinnedTable
    from trainer_client.tables.changes import Following
    from trainer_client.tables.table import Table

_log: Final = logging.getLogger("trainer_client")

_LOST: Final = (
    DeadlineExceededError,
    DrainingError,
    OverloadedError,
    RowsMovedError,
    SessionLostError,
    StaleHandleError,
    UnavailableError,
)
"""Errors after which objects are asked for again: an owner was started again, is about to, does not answer, or has too
much to do; also if a quota was used up, or rows move."""

_OF_ONE_OBJECT: Final = (
    InternalError,
    InvalidArgumentError,
    PermissionDeniedError,
    RemoteError,
    RowsMovedError,
    TooLargeError,
)
"""Errors of one object after which what else is exported goes on."""

_GONE_SECONDS: Final = 600.0
"""Seconds for which an export waits for an object that all of its owners have left. One may be started again, or the
object may be made anew."""


class Source(Protocol):
    """Where an exporter has its objects from. One that was exported already was on owners `had` then."""

    async def find_owners(self) -> None:
        """Connects to owners that have joined since, and forgets those that have left."""

    async def names(self) -> tuple[list[str], list[str]]:
        """The names of all tables and of all modules."""

    async def find_table(self, name: str, had: Collection[str] = ()) -> Table | PinnedTable:
        """The table of a name. Raises `UnknownNameError`, `UnavailableError` if an owner is not there that may have it,
        and `OwnersGoneError` if none is."""

    async def find_module(self, name: str, had: Collection[str] = ()) -> RemoteModule | PinnedModule:
        """The module of a name. Raises as `find_table`."""


class ExporterOfTable:
    """Brings what changes in one table into the folder."""

    def __init__(
        self, source: Source, folder: Folder, name: str, files: TableFiles | None, compress: Codec | None
    ) -> None:
        self._source, self._folder, self.name, self._compress = source, folder, name, compress
        self._files = files
        self._table: Table | PinnedTable | None = None
        self._following: Following | PinnedChanges | None = None
        self._exported: ExportedTable | None = None

    async def find(self) -> None:
        """Looks for the table, unless its handles are of use. Writes nothing."""
        if self._following is None:
            files = self.files
            self._table = await self._source.find_table(self.name, files.source if files is not None else ())

    async def round(self) -> None:
        """Takes what has changed by now. The table has been found."""
        assert self._table is not None
        if self._exported is None or self._following is None:
            self._exported = await self._begun(self._table)
            self._following = self._table.following(self._exported.version, 0.0, self._compress)
        try:
            async for change in self._following.round():
                await BLOCKING.run(self._exported.take, change)
        except UnknownNameError as error:
            raise StaleHandleError(str(error)) from None  # whether it was deleted is known when it is looked for

    async def _begun(self, table: Table | PinnedTable) -> ExportedTable:
        if self._exported is not None and self._exported.is_like(table.dim, table.dtype):
            return self._exported
        self._files = self.files
        codec = "" if self._compress is None else repr(self._compress)
        make = partial(ExportedTable, self._folder, self.name, table.dim, table.dtype, codec, self._files)
        return await BLOCKING.run(make)

    async def lost(self) -> None:
        """The handles of the table are of no use any more, and what was taken since the newest version is removed."""
        exported, self._following = self._exported, None
        if exported is not None and not exported.is_whole:
            self._files, self._exported = self.files, None
            await BLOCKING.run(exported.forget)

    @property
    def files(self) -> TableFiles | None:
        """Those of what was taken last, also by an earlier program."""
        return self._files if self._exported is None or self._exported.files is None else self._exported.files

    @property
    def is_exported(self) -> bool:
        """Whether a version has it, or may have it."""
        return self.files is not None


class ExporterOfModule:
    """The same for one module, whose state is one file. What its state has besides parameters and buffers is looked at
    in each round, because nothing counts its changes."""

    def __init__(self, source: Source, folder: Folder, name: str, before: ModuleFile | None) -> None:
        self._source, self._folder, self.name = source, folder, name
        self._owner = "" if before is None else before.owner
        self._module: RemoteModule | PinnedModule | None = None
        self._following: FollowingModule | PinnedModule | None = None
        self._names: set[str] = set()
        # What its state has besides; None if there is no such name in it.
        self._others: dict[str, torch.Tensor] | None = None
        # Whether its state was looked at: one without parameters and buffers has no change at first.
        self._was_taken = False
        # What was taken last, also by an earlier program.
        self.file = before

    async def find(self) -> None:
        """As that of a table."""
        if self._following is None:
            self._module = await self._source.find_module(self.name, [self._owner] if self._owner else [])

    async def round(self) -> None:
        """As that of a table."""
        assert self._module is not None
        if self._following is None:
            self._following = self._module.following(None, 0.0)
        try:
            change = await self._following.round()
            await self._take(self._module, change)
        except UnknownNameError as error:
            raise StaleHandleError(str(error)) from None  # as with a table
        self._owner = self._module.owner

    async def _take(self, module: RemoteModule | PinnedModule, change: ModuleChange | None) -> None:
        if change is not None:
            self._names |= {*change.parameters, *change.buffers}
        elif self._was_taken and self._others is None:
            return
        whole = await module.state_dict()
        state = _tensors(whole)
        others = {name: each for name, each in state.items() if name not in self._names}
        if change is None and self._was_taken and _are_equal(others, self._others or {}):
            return
        self._others = others if whole.keys() - self._names else None
        written = partial(self._folder.write, self.name, state, {"format": "pt"})
        self.file = ModuleFile(await BLOCKING.run(written), module.class_name, module.owner)
        self._was_taken = True

    async def lost(self) -> None:
        """As that of a table."""
        self._following = None

    @property
    def is_exported(self) -> bool:
        """As that of a table."""
        return self.file is not None


def _are_equal(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(_have_same_bits(each, other[name]) for name, each in one.items())


def _have_same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Not as torch compares, to which NaN is no NaN, and 0 is -0."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return torch.equal(*(each.contiguous().view(-1).view(torch.uint8) for each in (one, other)))


def _tensors(state: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """What is a plain tensor in a state; those that share memory as copies."""
    plain = {name: each for name, each in state.items() if isinstance(each, torch.Tensor)}
    return {name: each.detach().to_dense().cpu().clone() for name, each in plain.items()}


Part = ExporterOfTable | ExporterOfModule


def _taken(parts: Sequence[Part]) -> tuple[dict[str, TableFiles], dict[str, ModuleFile]]:
    """The files of what was taken of each object last."""
    tables = {of.name: of.files for of in parts if isinstance(of, ExporterOfTable) and of.files}
    modules = {of.name: of.file for of in parts if isinstance(of, ExporterOfModule) and of.file}
    return tables, modules


class Exporter:
    """Exports until it is cancelled, or once. `when_written` is called with each new version. Arguments are those of
    `Client.export`."""

    def __init__(
        self,
        source: Source,
        path: str | Path,
        tables: Sequence[str] | None,
        modules: Sequence[str] | None,
        every: float,
        keep: int,
        compress: Codec | None,
        parquet: bool,
        when_written: Callable[[Manifest], object],
    ) -> None:
        self._source = source
        self._folder = Folder(Path(path), keep, parquet)
        self._tables, self._modules = tables, modules
        self._is_of_all = tables is None and modules is None
        # Those whose last round has failed.
        self._failing: set[Part] = set()
        self._every = every
        self._compress = compress
        self._when_written = when_written

    async def run(self, once: bool) -> None:
        """Exports. Raises `InvalidArgumentError` and `OSError` as `Folder.open`, `UnknownNameError`, and
        `UnavailableError` if all owners of an object have been gone for long."""
        try:
            await self._export(await BLOCKING.run(self._folder.open), once)
        finally:
            await BLOCKING.run(self._folder.close)

    async def _export(self, newest: Manifest | None, once: bool) -> None:
        before = newest or Manifest(0, "", 0.0, 0.0)
        parts: list[Part] = []
        is_first, is_lost, told, gone = True, False, "", math.inf
        while True:
            began, as_of = time.monotonic(), time.time()
            try:
                if is_first or is_lost or self._is_of_all:
                    await self._source.find_owners()
                    await self._find(parts, before)
                await self._round(parts, once or is_first)
            except (*_LOST, OwnersGoneError) as error:
                are_gone = isinstance(error, OwnersGoneError)
                gone = min(gone, began) if are_gone else math.inf
                if once or time.monotonic() - gone >= _GONE_SECONDS:
                    if are_gone:
                        raise UnavailableError(str(error)) from None
                    raise
                if str(error) != told:
                    _log.warning("the export asks for its objects again: %s", error)
                is_lost, told = True, str(error)
                for each in parts:
                    await each.lost()
                taken = Manifest(before.version, "", as_of, as_of, *_taken(parts))
                await BLOCKING.run(self._folder.clear, taken.files())
            else:
                before = await self._write(before, as_of, *_taken(parts))
                is_first, is_lost, told, gone = False, False, "", math.inf
                if once:
                    return
            await asyncio.sleep(max(0.0, self._every - (time.monotonic() - began)))

    async def _round(self, parts: list[Part], is_at_start: bool) -> None:
        """A round of all objects. All are found before anything is written: after one that has to be looked for again,
        so are the others, and what was written of them would be written anew each time."""
        found = [each for each in list(parts) if await self._can(each, each.find, parts, is_at_start)]
        for each in found:
            if await self._can(each, each.round, parts, is_at_start):
                self._failing.discard(each)

    async def _can(self, part: Part, step: Callable[[], Awaitable[None]], parts: list[Part], is_at_start: bool) -> bool:
        """Takes a step of a round of one object, and says whether that could be done. One that was deleted is left out
        from then on, unless it was named, and otherwise waited for. One that cannot be had stays as it was, or is
        left out until it can, if it was made since."""
        try:
            await step()
        except UnknownNameError as error:
            if not self._is_of_all:
                raise error if is_at_start else StaleHandleError(str(error)) from None
            _log.warning("%r was deleted, and is not exported any more", part.name)
            parts.remove(part)
            self._failing.discard(part)
            return False
        except _OF_ONE_OBJECT as error:
            if is_at_start or not (self._is_of_all or part.is_exported):
                raise
            # What else is exported goes on.
            if part not in self._failing:
                what = "stays as it was in the export" if part.is_exported else "is not exported"
                _log.warning("%r %s, and is tried again: %s", part.name, what, error)
            self._failing.add(part)
            await part.lost()
            return False
        return True

    async def _find(self, parts: list[Part], before: Manifest) -> None:
        """Adds what is not among the parts: what is named, or all that there is by now, and what the newest version
        has, which may be on an owner that is not there."""
        names, modules = list(self._tables or ()), list(self._modules or ())
        if self._is_of_all:
            names, modules = await self._source.names()
            names += [each for each in before.tables if each not in names]
            modules += [each for each in before.modules if each not in modules]
        known = {(type(each), each.name) for each in parts}
        for each in names:
            if (ExporterOfTable, each) not in known:
                of_table = before.tables.get(each)
                parts.append(ExporterOfTable(self._source, self._folder, each, of_table, self._compress))
        for each in modules:
            if (ExporterOfModule, each) not in known:
                parts.append(ExporterOfModule(self._source, self._folder, each, before.modules.get(each)))

    async def _write(
        self, before: Manifest, as_of: float, tables: dict[str, TableFiles], modules: dict[str, ModuleFile]
    ) -> Manifest:
        """The newest version, which is a new one unless nothing has changed."""
        if before.version and (tables, modules) == (before.tables, before.modules):
            await BLOCKING.run(self._folder.tell, before.version, as_of)
            return before
        written = await BLOCKING.run(self._folder.publish, self._folder.last + 1, as_of, tables, modules)
        self._when_written(written)
        return written
