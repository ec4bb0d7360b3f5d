"""Up to which version each optimizer is on the disk."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from ps_service.durability.log.log import Log
    from ps_service.training.optimizers import HostedOptimizer

_MOST: Final = 1024
"""Most versions of an optimizer that are remembered. Of more, every other one is dropped, so that a durable version may
be told a little late."""


class Watermark:
    """Remembers the versions of optimizers whose records are not on the disk yet. Versions of one optimizer are noted
    one after the other, and read in any thread."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._of: WeakKeyDictionary[HostedOptimizer, _Versions] = WeakKeyDictionary()

    def note(self, optimizer: HostedOptimizer, version: int, position: int, before: int) -> None:
        """An optimizer has a version, with what is in the log before a position; before that it had another one, which
        is on the disk if nothing else is remembered of it."""
        versions = self._of.get(optimizer)
        if versions is None:
            versions = self._of[optimizer] = _Versions(before)
        versions.note(version, position, self._log.synced)

    def durable(self, optimizer: HostedOptimizer) -> int:
        """The version up to which an optimizer is on the disk."""
        versions = self._of.get(optimizer)
        # One that has not changed since the start of the owner was on the disk then.
        return optimizer.version if versions is None else versions.at(self._log.synced)


class _Versions:
    """The versions of one optimizer."""

    def __init__(self, durable: int) -> None:
        self._durable = durable
        # Versions that may not be on the disk, with the positions behind their records.
        self._later: deque[tuple[int, int]] = deque()

    def note(self, version: int, position: int, synced: int) -> None:
        later = self._later
        while later and later[0][1] <= synced:
            self._durable = later.popleft()[0]
        if len(later) >= _MOST:
            self._later = later = deque(list(later)[1::2])
        later.append((version, position))

    def at(self, synced: int) -> int:
        # A copy is made at once, while another thread may note a version.
        durable = self._durable
        for version, position in list(self._later):
            if position > synced:
                break
            durable = version
        return durable
