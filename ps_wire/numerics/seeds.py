"""Derives seeds from a seed and a count; the same inputs give the same seeds in every process."""

from __future__ import annotations

import hashlib
from itertools import count
from operator import index
from typing import Any, Final

from ps_wire.errors import InvalidArgumentError
from ps_wire.shown import shown

_BITS: Final = 1 << 64
_CALLS: Final = 0
_BRANCHES: Final = 1
_BACKWARD: Final = 2


def of_torch(seed: int) -> int:
    """The seed of 64 bits that `torch.manual_seed` takes a number for: negative ones count from the end. Raises
    `InvalidArgumentError` if it is no whole number."""
    return whole(seed) % _BITS


def whole(seed: Any) -> int:
    """A seed, also of numpy or torch, as an integer of Python. Raises `InvalidArgumentError` if it is none."""
    try:
        return index(seed)
    except TypeError:
        raise InvalidArgumentError(f"a seed is a whole number, not {shown(seed)}") from None


def derived(seed: int, *path: int) -> int:
    """Derives a 64-bit seed by hashing another seed and a path of integers."""
    digest = hashlib.blake2b(digest_size=8)
    for number in (seed, *path):
        digest.update((number % _BITS).to_bytes(8, "little"))
    return int.from_bytes(digest.digest(), "little")


def of_backward(seed: int) -> int:
    """The seed of what code of a call draws in the backward, derived from that of the call."""
    return derived(seed, _BACKWARD)


class Seeds:
    """A sequence of seeds derived from one seed. Safe to use from several threads."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        # Taking the next number of a count is atomic.
        self._calls = count(1)
        self._branches = count(1)

    def next(self) -> int:
        """The next seed."""
        return derived(self._seed, _CALLS, next(self._calls))

    def branch(self) -> Seeds:
        """Derives a new sequence with a count of its own; each call returns a different one."""
        return Seeds(derived(self._seed, _BRANCHES, next(self._branches)))
