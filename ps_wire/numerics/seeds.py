"""Seeds: numbers that follow from one number and a count, the same in every process."""

from __future__ import annotations

import hashlib
import threading
from typing import Final

_BITS: Final = 1 << 64
_CALLS: Final = 0
_BRANCHES: Final = 1


def derived(seed: int, *path: int) -> int:
    """A seed that follows from another one and some numbers; 64 bits, as good as random."""
    digest = hashlib.blake2b(digest_size=8)
    for number in (seed, *path):
        digest.update((number % _BITS).to_bytes(8, "little"))
    return int.from_bytes(digest.digest(), "little")


class Seeds:
    """Hands out seeds: the first, the second, the third … that follow from one. Safe to use from several threads.

    Args:
        seed: From which they follow.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._lock = threading.Lock()
        self._handed_out = 0
        self._branches = 0

    def next(self) -> int:
        """The next seed."""
        with self._lock:
            self._handed_out += 1
            return derived(self._seed, _CALLS, self._handed_out)

    def branch(self) -> Seeds:
        """Others, which count for themselves: the first branch, the second …"""
        with self._lock:
            self._branches += 1
            return Seeds(derived(self._seed, _BRANCHES, self._branches))
