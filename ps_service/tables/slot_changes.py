"""Notes which rows of some slots change while they are copied to another owner."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import torch

from ps_wire.tables.routing import slots_of

if TYPE_CHECKING:
    from ps_service.tables.watchers import IdsOf, Watchers

ABANDONED_SECONDS: Final = 60.0
"""Seconds after which a move is given up that nobody goes on with."""

_MOST_NOTED: Final = 256
"""Changes after which their ids are put together."""


class SlotChanges:
    """As `RowWatcher`: notes the ids of rows in some slots, bool [SLOTS]. It is used under the lock of the shard. It is
    `void`, and notes nothing more, if all rows have gone at once, or if nobody has asked for what has changed for a
    long time."""

    def __init__(self, watchers: Watchers, slots: torch.Tensor) -> None:
        self.void = False
        self._watchers = watchers
        self._slots = slots
        self._noted: list[torch.Tensor] = []
        self._asked = time.monotonic()

    def begin(self) -> None:
        """Notes changes from now on."""
        self._watchers.add(self)

    def end(self) -> None:
        """Notes no more."""
        self._watchers.drop(self)

    def written(self, numbers: torch.Tensor, ids_of: IdsOf) -> None:
        """As `RowWatcher.written`."""
        self.removed(ids_of(numbers))

    def looked_up(self, numbers: torch.Tensor, ids_of: IdsOf) -> None:
        """As `RowWatcher.looked_up`: when rows were looked up moves with them."""
        self.removed(ids_of(numbers))

    def removed(self, ids: torch.Tensor) -> None:
        """As `RowWatcher.removed`."""
        self._noted.append(ids.clone())
        if len(self._noted) >= _MOST_NOTED:
            self._noted = [torch.cat(self._noted).unique()]
            if time.monotonic() - self._asked > ABANDONED_SECONDS:
                self._give_up()

    def cleared(self) -> None:
        """As `RowWatcher.cleared`."""
        self._give_up()

    def _give_up(self) -> None:
        self.void = True
        self._noted = []
        self.end()

    def goes_on(self) -> bool:
        """Whether it still notes; somebody asks."""
        self._asked = time.monotonic()
        return not self.void

    def take(self, most: int) -> tuple[torch.Tensor, int]:
        """At most so many of the ids that were noted, each once, and how many are left. They are not noted any more."""
        noted = torch.cat(self._noted) if self._noted else torch.empty(0, dtype=torch.int64, device="cpu")
        ids = noted.unique()
        ids = ids[self._slots[slots_of(ids)]]
        taken, left = ids[:most], ids[most:]
        self._noted = [left] if len(left) else []
        return taken, len(left)
