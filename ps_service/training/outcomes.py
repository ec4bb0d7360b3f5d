"""What the rounds of an optimizer say: to trainers, to owners that follow, and to a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from ps_service.policies.decisions import Entry


class Outcome(NamedTuple):
    """What became of an offer.

    Attributes:
        version: The version of the optimizer.
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
    """What a trainer brings to the owners that follow.

    Attributes:
        epoch: The number of the trainer's join; 0 if it is no member.
        base: The number of the last decision that is forgotten, because all owners have carried it out.
        entries: Decisions that another owner may not know.
    """

    epoch: int
    base: int
    entries: list[Entry]


class Membership(NamedTuple):
    """The trainers that use an optimizer.

    Attributes:
        clocks: How many gradients of each have counted or were dropped; see `Member`.
        most: The largest number of trainers at one time since the policy was set.
    """

    clocks: Mapping[bytes, int]
    most: int
