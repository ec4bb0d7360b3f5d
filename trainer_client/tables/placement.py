"""Which slots of a table move to which owner."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch

from ps_wire.errors import InvalidArgumentError
from ps_wire.tables.routing import SLOTS, Routing


class Step(NamedTuple):
    """Slots, bool [SLOTS], that move from one owner to another."""

    source: str
    target: str
    slots: torch.Tensor


def even(routing: Routing, owners: Iterable[str]) -> list[Step]:
    """The fewest moves after which each of some owners has as many slots as every other, and nobody else has any."""
    names = sorted(set(owners))
    if not names:
        raise InvalidArgumentError("the slots of a table are for at least one owner")
    counts = {name: int(routing.slots(name).sum()) for name in {*names, *routing.owners}}
    share, rest = divmod(SLOTS, len(names))
    # Who has most keeps one more, so that nothing moves back and forth.
    most = sorted(names, key=lambda name: (-counts[name], name))
    wanted = dict.fromkeys(counts, 0) | {name: share + (place < rest) for place, name in enumerate(most)}
    lacking = [(name, wanted[name] - counts[name]) for name in names if wanted[name] > counts[name]]
    steps = []
    for source in sorted(routing.owners, key=lambda name: (name in names, name)):
        spare = routing.slots(source).nonzero().view(-1)[wanted[source] :]
        while len(spare):
            target, missing = lacking.pop()
            steps.append(Step(source, target, _chosen(spare[:missing])))
            if missing > len(spare):
                lacking.append((target, missing - len(spare)))
            spare = spare[missing:]
    return steps


def away(routing: Routing, owner: str, targets: Sequence[str]) -> list[Step]:
    """The moves after which an owner has no slot, and each of some others has got as many of its slots."""
    if not targets or owner in targets:
        raise InvalidArgumentError(f"the slots of owner {owner!r} go to other owners, and there is none")
    spare = routing.slots(owner).nonzero().view(-1)
    parts = spare.tensor_split(len(targets))
    return [Step(owner, target, _chosen(part)) for target, part in zip(targets, parts, strict=True) if len(part)]


def _chosen(slots: torch.Tensor) -> torch.Tensor:
    chosen = torch.zeros(SLOTS, dtype=torch.bool, device="cpu")
    chosen[slots] = True
    return chosen
