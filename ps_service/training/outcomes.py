"""What the rounds of an optimizer say: to trainers, to owners that follow, and to a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from ps_service.policies.decisions import Entry


class Outcome(NamedTuple):
    """What became of an offer.

    Attributes:
        staleness: The number of steps between the reading of the gradients and their round.
        counted: How many gradients the round has; 0 if it is still open.
        reason: Why the gradients do not count; empty if they do.
        values: The values that were reported with the gradients of the round, reduced by name.
    """

    version: int
    staleness: int
    counted: int
    reason: str = ""
    values: Mapping[str, Any] = {}


class Decided(NamedTuple):
    """What a trainer brings to the owners that follow: decisions that they may not know.

    `epoch` is the number of the trainer's join, 0 if it is no member. All owners have carried out those up to `base`,
    which are forgotten.
    """

    epoch: int
    base: int
    entries: list[Entry]


class Membership(NamedTuple):
    """The trainers that use an optimizer, with how many gradients of each have counted or were dropped (see `Member`),
    and the largest number of trainers at one time since the policy was set."""

    clocks: Mapping[bytes, int]
    most: int
