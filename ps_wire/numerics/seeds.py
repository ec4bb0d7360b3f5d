"""Derives seeds from a seed and a count; the same inputs give the same seeds in every process."""

from __future__ import annotations

import hashlib
import threading
from operator import index
from typing import Final

_BITS: Final = 1 << 64
_CALLS: Final = 0
_BRANCHES: Final = 1


def of_torch(seed: int) -> int:
    """The seed of 64 bits that `torch.manual_seed` takes a number for: negative ones count from the end."""
    return index(seed) % _BITS


def derived(seed: int, *path: int) -> int:
    """Derives a 64-bit seed by hashing another seed and a path of integers."""
    digest = hashlib.blake2b(digest_size=8)
    for number in (seed, *path):
        digest.update((number % _BITS).to_bytes(8, "little"))
    return int.from_bytes(digest.digest(), "little")


class Seeds:
    """A sequence of seeds derived from one seed. Safe to use from several threads."""

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
        """Derives a new sequence with a count of its own; each call returns a different one."""
        with self._lock:
            self._branches += 1
            return Seeds(derived(self._seed, _BRANCHES, self._branches))
