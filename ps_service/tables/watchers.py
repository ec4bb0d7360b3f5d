"""Who is told that rows of a shard change, besides the log: feeds of changes, and moves to other owners."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from ps_wire.tables.versions import RowsVersion

if TYPE_CHECKING:
    import torch

    IdsOf = Callable[[torch.Tensor], torch.Tensor]
    """The ids of rows, by their numbers."""


class RowWatcher(Protocol):
    """Is told of changes, under the lock of the shard."""

    def written(self, numbers: torch.Tensor, ids_of: IdsOf) -> None:
        """Rows with these numbers, int64 [n], were added or changed."""

    def removed(self, ids: torch.Tensor) -> None:
        """The rows of these ids, int64 [n], were removed, as far as there were any."""

    def looked_up(self, numbers: torch.Tensor, ids_of: IdsOf) -> None:
        """Training has looked up the rows with these numbers, which notes when that was."""

    def cleared(self) -> None:
        """All rows were removed."""


class Watchers:
    """The watchers of one shard, and the number of its changes. It is used under the lock of the shard."""

    def __init__(self, ids_of: IdsOf) -> None:
        self._ids_of = ids_of
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

    def written(self, numbers: torch.Tensor) -> None:
        """As that of a watcher."""
        self._number += 1
        for each in self._all:
            each.written(numbers, self._ids_of)

    def removed(self, ids: torch.Tensor) -> None:
        """As that of a watcher."""
        self._number += 1
        for each in self._all:
            each.removed(ids)

    def looked_up(self, numbers: torch.Tensor) -> None:
        """As that of a watcher."""
        for each in self._all:
            each.looked_up(numbers, self._ids_of)

    def cleared(self) -> None:
        """As that of a watcher."""
        self._number += 1
        for each in self._all:
            each.cleared()
