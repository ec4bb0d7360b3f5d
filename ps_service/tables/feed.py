"""Which rows have changed since which version, for those who follow a table."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from ps_service.tables.storage import RowStorage, make_rows

if TYPE_CHECKING:
    from ps_service.tables.id_map import IdMap
    from ps_service.tables.watchers import IdsOf, Watchers
    from ps_wire.tables.versions import RowsVersion

MOST_IDS: Final = 1 << 20
"""The most ids of rows that have gone which a feed remembers if nobody reads in several pieces, and of those and of
rows that have changed in a checkpoint: 8 MiB. Who asks for what has changed before reads all rows."""

ENTRY_IDS: Final = 64
"""As how many more ids a removal counts: its tensor takes memory, too, where each removes one row."""

SCAN_ROWS: Final = 1 << 20
"""Rows whose stamps are looked at in one step."""

ABANDONED_SECONDS: Final = 600.0
"""Seconds after which a feed notes nothing more that nobody has asked."""

READING_SECONDS: Final = 180.0
"""Seconds after which somebody who reads rows in several pieces is not waited for any more."""

_MOST_EPOCHS: Final = 16


class Changed(NamedTuple):
    """What has changed: the numbers of rows that are there, int64 [n]; ids of rows that have gone, or have come back,
    int64 [m]; and from which number to look on, None at the end."""

    numbers: torch.Tensor
    removed: torch.Tensor
    begin: int | None


class Feed:
    """As `RowWatcher`. From when it is first asked until nobody has asked for long, each row has a stamp, the number of
    its last change, and ids of rows that have gone are kept with theirs. It is used under the lock of the shard, which
    has `most` rows at most."""

    def __init__(self, watchers: Watchers, ids: IdMap, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._watchers: Final = watchers
        self._ids: Final = ids
        self._most: Final = most
        self._clock: Final = clock
        self._stamps: RowStorage | None = None
        self._asked = 0.0
        # When rows were read last in several pieces.
        self._read = -math.inf
        self._removed: deque[tuple[int, torch.Tensor]] = deque()
        self._count = 0
        # The number from which on it has noted all changes.
        self._since = 0
        # Of earlier epochs whose changes it knows: the last number.
        self._earlier: dict[int, int] = {}

    def since(self, version: RowsVersion | None, begin: int, most: int) -> Changed | None:
        """What has changed since a version, of the rows with numbers from `begin` on, at most so many and a few more;
        None if it does not know. Ids of rows that have gone come with the first. Raises no error for a number beyond
        the last row."""
        self._asked = self._clock()
        if self._stamps is None:
            self._begin()
        if version is None or begin:
            self._read = self._asked
        number = None if version is None else self._known(version)
        if number is None:
            return None
        assert self._stamps is not None
        parts, count, end = [], 0, self._ids.rows
        gone = [ids for last, ids in self._removed if last > number] if begin == 0 else []
        while begin < end and count < most:
            low, begin = begin, min(begin + SCAN_ROWS, end)
            _, in_use = self._ids.between(low, begin)
            self._stamps.grow(begin)
            changed = (self._stamps.between(low, begin)[:, 0] > number) & in_use
            numbers = low + changed.nonzero()[:, 0]
            if count + len(numbers) > most:
                numbers = numbers[: most - count]
                begin = int(numbers[-1]) + 1
            parts.append(numbers)
            count += len(numbers)
        nothing = torch.empty(0, dtype=torch.int64, device="cpu")
        removed = torch.cat(gone).unique() if gone else nothing
        return Changed(torch.cat([nothing, *parts]), removed, begin if begin < end else None)

    def _begin(self) -> None:
        self._stamps, self._since = make_rows(self._most + 1, 1, torch.int64), self._watchers.version.number
        self._earlier.clear()
        self._watchers.add(self)

    def _known(self, version: RowsVersion) -> int | None:
        """The number of a version since which it knows all changes, or None."""
        epoch, number = version
        now = self._watchers.version
        last = now.number if epoch == now.epoch else self._earlier.get(epoch, -1)
        return number if self._since <= number <= last else None

    def written(self, numbers: torch.Tensor, ids_of: IdsOf) -> None:
        """As `RowWatcher.written`."""
        if self._stamps is not None and len(numbers):
            self._stamps.grow(self._ids.rows)
            self._stamps.write(numbers, torch.full((len(numbers), 1), self._watchers.version.number, device="cpu"))
        if self._clock() - self._asked > ABANDONED_SECONDS:
            self._end()

    def removed(self, ids: torch.Tensor) -> None:
        """As `RowWatcher.removed`."""
        if not len(ids):
            return
        self._removed.append((self._watchers.version.number, ids.clone()))
        self._count += len(ids) + ENTRY_IDS
        most = self._most_removed()
        while self._count > most:
            self._since, gone = self._removed.popleft()
            self._count -= len(gone) + ENTRY_IDS

    def _most_removed(self) -> int:
        """The most ids of rows that have gone which it remembers. While somebody reads rows in several pieces these are
        as many more as there were rows: who began anew each time that many have gone might never be done."""
        return MOST_IDS + self._ids.rows if self._clock() - self._read <= READING_SECONDS else MOST_IDS

    def looked_up(self, numbers: torch.Tensor, ids_of: IdsOf) -> None:
        """As `RowWatcher.looked_up`: that is no change."""

    def cleared(self) -> None:
        """As `RowWatcher.cleared`: rows that nobody has counted are named by none."""
        self._forget()
        if self._stamps is not None:
            self._stamps.clear()

    def begin_epoch(self) -> None:
        """Begins another epoch: who has followed the rows in this one reads all again."""
        self._watchers.begin_epoch()
        self._forget()

    def _forget(self) -> None:
        self._removed.clear()
        self._count = 0
        self._since = self._watchers.version.number
        self._earlier.clear()

    def _end(self) -> None:
        self._watchers.drop(self)
        self._stamps = None
        self._forget()

    def state(self) -> dict[str, Any] | None:
        """What it knows of the latest changes, for a later process with the same rows; None if it notes nothing."""
        if self._stamps is None:
            return None
        epoch, number = self._watchers.version
        ids, numbers = self._ids.items()
        self._stamps.grow(self._ids.rows)
        stamps, since = self._stamps.read(numbers)[:, 0], self._since
        if len(stamps) > MOST_IDS:
            since = max(since, int(stamps.kthvalue(len(stamps) - MOST_IDS).values))
        since = max(since, self._last_beyond(MOST_IDS))
        changed = stamps > since
        return {
            "epochs": {**self._earlier, epoch: number},
            "since": since,
            "ids": ids[changed],
            "stamps": stamps[changed],
            "removed": [(last, gone) for last, gone in self._removed if last > since],
        }

    def _last_beyond(self, most: int) -> int:
        """The number of the last removal that is not among the latest of so many ids; 0 if all are."""
        for last, gone in reversed(self._removed):
            most -= len(gone) + ENTRY_IDS
            if most < 0:
                return last
        return 0

    def load(self, state: Mapping[str, Any]) -> None:
        """Continues with what `state` has given in an earlier process, whose rows are there. Who has followed them goes
        on, as far as they are there: an owner that was killed may have lost later changes."""
        epochs = dict(state["epochs"])
        self._watchers.begin_epoch(max(epochs.values()))
        if self._stamps is None:
            self._begin()
        assert self._stamps is not None
        numbers = self._ids.find(state["ids"])
        there = numbers >= 0
        self._stamps.clear()
        self._stamps.grow(self._ids.rows)
        self._stamps.write(numbers[there], state["stamps"][there][:, None])
        self._removed = deque((int(last), gone) for last, gone in state["removed"])
        self._count = sum(len(gone) + ENTRY_IDS for _, gone in self._removed)
        self._since = state["since"]
        self._earlier = dict(list(epochs.items())[-_MOST_EPOCHS:])
        self._asked = self._clock()
