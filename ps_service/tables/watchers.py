"""Who is told that rows of a shard change, besides the log: feeds of changes, and moves to other owners."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Protocol

from ps_wire.tables.versions import RowsVersion

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch


class RowWatcher(Protocol):
    """Is told of changes, under the lock of the shard. It hears of look-ups only if it `notes_look_ups`."""

    @property
    def notes_look_ups(self) -> bool: ...

    def changed(self, ids: torch.Tensor) -> None:
        """Rows of these ids, int64 [n], were added, changed or removed."""

    def cleared(self) -> None:
        """All rows were removed."""


class Watchers:
    """The watchers of one shard, and the number of its changes. It is used under the lock of the shard."""

    def __init__(self) -> None:
        self._all: tuple[RowWatcher, ...] = ()
        self._epoch = secrets.randbits(53)
        self._number = 0

    @property
    def version(self) -> RowsVersion:
        """That of the rows as they are. Each change has a larger number than all before, and an epoch is of one
        process."""
        return RowsVersion(self._epoch, self._number)

    def begin_epoch(self, number: int = 0) -> None:
        """Begins another epoch, in which numbers are larger than all before, and than this one."""
        self._epoch, self._number = secrets.randbits(53), max(self._number, number) + 1

    def add(self, watcher: RowWatcher) -> None:
        """Tells a watcher from now on."""
        self._all = (*self._all, watcher)

    def drop(self, watcher: RowWatcher) -> None:
        """Does not tell it any more, if it was told."""
        self._all = tuple(each for each in self._all if each is not watcher)

    def changed(self, ids: torch.Tensor) -> None:
        """Tells that rows of these ids were added, changed or removed."""
        self._number += 1
        for each in self._all:
            each.changed(ids)

    def stepped(self, numbers: torch.Tensor, ids_of: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Tells that the rows with these numbers were changed."""
        self._number += 1
        if self._all:
            ids = ids_of(numbers)
            for each in self._all:
                each.changed(ids)

    def looked_up(self, numbers: torch.Tensor, ids_of: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Tells that training has looked up the rows with these numbers."""
        if self._all:
            for each in self._all:
                if each.notes_look_ups:
                    each.changed(ids_of(numbers))

    def cleared(self) -> None:
        """Tells that all rows were removed."""
        self._number += 1
        for each in self._all:
            each.cleared()
