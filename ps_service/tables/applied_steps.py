"""Steps that an owner has applied to rows of a table before these moved to another one."""

from __future__ import annotations

import hashlib
from typing import Final, NamedTuple

MOST_APPLIED: Final = 4096
"""The most passes of which is remembered that other owners have applied steps."""


class AppliedSteps(NamedTuple):
    """Steps of a pass that may be run again, which an owner has applied to rows that have moved: a digest of the id of
    its trainer, the number of the run, and the places of the steps."""

    trainer: bytes
    run: int
    places: tuple[int, ...]


def digest_of(trainer: bytes) -> bytes:
    """What other programs may know of the id of a trainer, which is a secret."""
    return hashlib.blake2b(trainer, digest_size=16).digest()
