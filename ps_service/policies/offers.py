"""Offers of gradients to the rounds of an optimizer, and what the rounds answer."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple


class OfferKey(NamedTuple):
    """Names an offer. Its epoch is the number of the trainer's join if the optimizer spans owners, otherwise 0."""

    trainer: bytes
    number: int
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Offer:
    """A gradient for all parameters of an optimizer. It was computed with the parameters of the version `read`: a
    negative one if there were more steps since, also of others, than the optimizer has made in all."""

    key: OfferKey
    read: int


class Reason(enum.Enum):
    """Why an offer does not count. An outdated one is from before its trainer has left; it is to be made anew."""

    LATE = "late"
    STALE = "stale"
    LEFT = "left"
    WITHDRAWN = "withdrawn"
    OUTDATED = "outdated"


@dataclass(frozen=True, slots=True)
class Counted:
    """A gradient that counts in a round. It is multiplied with `weight`, and their sum is divided."""

    key: OfferKey
    staleness: int
    weight: float


@dataclass(frozen=True, slots=True)
class Close:
    """A round is complete: its gradients, in the order of the offers, make the step that leads to `version`."""

    version: int
    counted: tuple[Counted, ...]
    divisor: int


@dataclass(frozen=True, slots=True)
class Dropped:
    """An offer does not count. `staleness` is the number of steps since its reading."""

    key: OfferKey
    staleness: int
    reason: Reason


@dataclass(frozen=True, slots=True)
class Pooled:
    """A gradient counts in the open round, and its trainer goes on now, at this version of the optimizer. If it
    completes the round, its trainer goes on with the `Answer` after the `Close` instead."""

    counted: Counted
    version: int
    completes: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """The trainer of an offer may go on. `version` is that of the optimizer after the offer's round."""

    key: OfferKey
    version: int


Event = Close | Dropped | Pooled | Answer
"""What the rounds say. A gradient that counts is part of one `Close`."""
