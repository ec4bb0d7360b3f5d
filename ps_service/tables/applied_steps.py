"""Steps that were applied to the rows of some slots only, as slots have moved since between owners that had applied
them and others that had not."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from ps_wire.errors import InvalidArgumentError
from ps_wire.tables.routing import SLOTS

MOST_APPLIED: Final = 4096
"""The most steps of which is remembered to which slots they were applied."""

_ALL: Final = torch.ones(SLOTS, dtype=torch.bool, device="cpu")


class AppliedStep(NamedTuple):
    """A step of a pass that may be run again: a digest of the id of its trainer, the number of the run, and the place
    of the step."""

    trainer: bytes
    run: int
    place: int


class Applied(dict[AppliedStep, torch.Tensor]):
    """The slots, bool [SLOTS], to whose rows steps were applied, by whatever owner. It is never changed."""

    @cached_property
    def runs(self) -> frozenset[tuple[bytes, int]]:
        """The digests of trainers and the numbers of runs that it has steps of."""
        return frozenset((step.trainer, step.run) for step in self)


def digest_of(trainer: bytes) -> bytes:
    """What other programs may know of the id of a trainer, which is a secret."""
    return hashlib.blake2b(trainer, digest_size=16).digest()


def added(applied: Applied, more: Mapping[AppliedStep, torch.Tensor]) -> Applied:
    """Steps that were applied to the slots of one or of the other."""
    made, sums = dict(applied), dict[tuple[int, int], torch.Tensor]()
    for step, slots in more.items():
        before = made.pop(step, None)
        if before is not None and (id(before), id(slots)) not in sums:
            sums[id(before), id(slots)] = before | slots
        made[step] = slots if before is None else sums[id(before), id(slots)]
    return Applied(list(made.items())[-MOST_APPLIED:])


def to_plain(applied: Applied) -> list[tuple[torch.Tensor, list[tuple[Any, ...]]]]:
    """As plain values: slots, as uint8 with a bit for each, and the steps that were applied to these."""
    groups: dict[int, tuple[torch.Tensor, list[tuple[Any, ...]]]] = {}
    for step, slots in applied.items():
        if id(slots) not in groups:
            groups[id(slots)] = torch.from_numpy(np.packbits(slots.numpy())), []
        groups[id(slots)][1].append(tuple(step))
    return list(groups.values())


def from_plain(values: Any, within: torch.Tensor = _ALL) -> Applied:
    """What `to_plain` has given, as far as it is within some slots. Raises `InvalidArgumentError` for anything else."""
    applied = Applied()
    try:
        for packed, steps, *places in values:
            if places:  # as owners of before have written it, of all slots: a trainer, a run, and places
                applied.update({AppliedStep(packed, steps, place): within for place in places[0]})
                continue
            if packed.shape != (SLOTS // 8,):
                raise ValueError
            slots = torch.from_numpy(np.unpackbits(packed.numpy())).bool() & within
            if not all(isinstance(trainer, bytes) for trainer, _, _ in steps):
                raise ValueError
            if slots.any():
                applied.update({AppliedStep(trainer, int(run), int(place)): slots for trainer, run, place in steps})
    except (AttributeError, OverflowError, RuntimeError, TypeError, ValueError):
        raise InvalidArgumentError("steps that were applied are slots, and trainers, runs and places") from None
    return applied
