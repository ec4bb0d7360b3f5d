"""Which rows have changed since which version, for those who follow a table."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

if TYPE_CHECKING:
    from ps_service.tables.watchers import Watchers
    from ps_wire.tables.versions import RowsVersion

MOST_IDS: Final = 1 << 20
"""The most ids that a feed remembers: 8 MiB. Who asks for what has changed before reads all rows."""

MOST_SEGMENTS: Final = 64

_MOST_OPEN: Final = 256
"""Changes after which their ids are put together."""

ABANDONED_SECONDS: Final = 600.0
"""Seconds after which a feed notes nothing more that nobody has asked."""

_MOST_EPOCHS: Final = 16


class Segment(NamedTuple):
    """Different ids, int64 [n], of rows that changed with numbers above those of the segment before, up to `last`."""

    last: int
    ids: torch.Tensor


class Feed:
    """As `RowWatcher`. It notes ids from when it is first asked until nobody has asked for long, in segments: two
    neighbours become one where there are too many, and the oldest go where they have too many ids. So it may name rows
    that have changed before the version that it is asked about, but it never leaves one out. It is used under the lock
    of the shard."""

    notes_look_ups: Final = False

    def __init__(self, watchers: Watchers, clock: Callable[[], float] = time.monotonic) -> None:
        self._watchers: Final = watchers
        self._clock: Final = clock
        self._is_noting = False
        self._asked = 0.0
        self._open: list[torch.Tensor] = []
        self._segments: list[Segment] = []
        # The number from which on it has noted all changes.
        self._since = 0
        # Of earlier epochs whose changes it knows: the last number.
        self._earlier: dict[int, int] = {}

    def since(self, version: RowsVersion | None) -> torch.Tensor | None:
        """Different ids, ascending, of all rows that have changed since a version; None if it does not know."""
        self._asked = self._clock()
        if not self._is_noting:
            self._begin()
        self._seal()
        number = None if version is None else self._known(version)
        if number is None:
            return None
        parts = [each.ids for each in self._segments if each.last > number]
        return _different(parts)

    def _begin(self) -> None:
        self._is_noting, self._since = True, self._watchers.version.number
        self._earlier.clear()
        self._watchers.add(self)

    def _known(self, version: RowsVersion) -> int | None:
        """The number of a version since which it knows all changes, or None."""
        epoch, number = version
        now = self._watchers.version
        last = now.number if epoch == now.epoch else self._earlier.get(epoch, -1)
        return number if self._since <= number <= last else None

    def changed(self, ids: torch.Tensor) -> None:
        """As `RowWatcher.changed`."""
        self._open.append(ids.clone())
        if len(self._open) >= _MOST_OPEN:
            self._seal()
            if self._clock() - self._asked > ABANDONED_SECONDS:
                self._end()

    def cleared(self) -> None:
        """As `RowWatcher.cleared`: rows that nobody has counted are named by none."""
        self._forget()

    def begin_epoch(self) -> None:
        """Begins another epoch: who has followed the rows in this one reads all again."""
        self._watchers.begin_epoch()
        self._forget()

    def _forget(self) -> None:
        self._open, self._segments = [], []
        self._since = self._watchers.version.number
        self._earlier.clear()

    def _end(self) -> None:
        self._watchers.drop(self)
        self._is_noting = False
        self._forget()

    def _seal(self) -> None:
        if not self._open:
            return
        self._segments.append(Segment(self._watchers.version.number, _different(self._open)))
        self._open = []
        # The newest is joined with none: who asks often has had those before it.
        while len(self._segments) > MOST_SEGMENTS:
            sizes = [len(each.ids) for each in self._segments]
            self._join(min(range(len(sizes) - 2), key=lambda place: sizes[place] + sizes[place + 1]))
        if self._count() > MOST_IDS:
            # Rows that change again and again are kept once for both of two neighbours.
            for place in range((len(self._segments) - 1) // 2):
                self._join(place)
            while self._count() > MOST_IDS * 3 // 4:
                self._since = self._segments.pop(0).last

    def _count(self) -> int:
        return sum(len(each.ids) for each in self._segments)

    def _join(self, place: int) -> None:
        first, second = self._segments[place : place + 2]
        self._segments[place : place + 2] = [Segment(second.last, _different([first.ids, second.ids]))]

    def state(self) -> dict[str, Any] | None:
        """What it knows, for a later process with the same rows; None if it notes nothing."""
        if not self._is_noting:
            return None
        self._seal()
        epoch, number = self._watchers.version
        return {
            "epochs": {**self._earlier, epoch: number},
            "since": self._since,
            "segments": [tuple(each) for each in self._segments],
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Continues with what `state` has given in an earlier process, whose rows are there. Who has followed them goes
        on, as far as they are there: an owner that was killed may have lost later changes."""
        epochs = dict(state["epochs"])
        self._watchers.begin_epoch(max(epochs.values()))
        if not self._is_noting:
            self._begin()
        self._open, self._segments = [], [Segment(*each) for each in state["segments"]]
        self._since = state["since"]
        self._earlier = dict(list(epochs.items())[-_MOST_EPOCHS:])
        self._asked = self._clock()


def _different(parts: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat(parts).unique() if parts else torch.empty(0, dtype=torch.int64)
