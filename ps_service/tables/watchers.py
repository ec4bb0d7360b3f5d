"""Who is told that rows of a shard change, besides the log: feeds of changes, moves to other owners, and what keeps
rows as they were."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol
from weakref import ref

from ps_wire.tables.versions import RowsVersion

if TYPE_CHECKING:
    import torch

    from ps_service.tables.id_map import IdMap

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


class RowKeeper(Protocol):
    """Is told before rows change, under the lock of the shard."""

    def keep(self, numbers: torch.Tensor) -> None:
        """Rows with these numbers, int64 [n], are about to change or to go, or have just been added."""


_CLEARED_ROWS: Final = 1 << 16
"""Rows that are kept at once before all are removed."""


class Watchers:
    """The watchers of one shard, and the number of its changes. It is used under the lock of the shard."""

    def __init__(self, ids: IdMap) -> None:
        self._ids: Final = ids
        self._ids_of: IdsOf = ids.ids_of
        self._all: tuple[RowWatcher, ...] = ()
        self._keepers: tuple[ref[RowKeeper], ...] = ()
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

    def tell_before(self, keeper: RowKeeper) -> None:
        """Tells a keeper of rows from now on, as long as something else refers to it."""
        self._keepers = (*self._keepers, ref(keeper))

    def changing(self, numbers: torch.Tensor) -> None:
        """As `RowKeeper.keep`."""
        for each in self._keepers:
            if (keeper := each()) is None:
                self._keepers = tuple(other for other in self._keepers if other is not each)
            else:
                keeper.keep(numbers)

    def removing(self, ids: torch.Tensor) -> None:
        """The rows of these ids, int64 [n], are about to go, as far as there are any."""
        if self._keepers:
            numbers = self._ids.find(ids)
            self.changing(numbers[numbers >= 0])

    def clearing(self) -> None:
        """All rows are about to go."""
        for begin in range(0, self._ids.rows if self._keepers else 0, _CLEARED_ROWS):
            _, in_use = self._ids.between(begin, begin + _CLEARED_ROWS)
            self.changing(begin + in_use.nonzero()[:, 0])

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
