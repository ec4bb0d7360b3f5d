"""Offers of gradients to the rounds of an optimizer, and what the rounds answer."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple


class OfferKey(NamedTuple):
    """Names an offer: its trainer, the number that it was given, and which time the trainer has joined.

    Attributes:
        trainer: Id of the trainer.
        number: The number of the offer.
        epoch: The number of the trainer's join, if the optimizer spans several owners; otherwise 0.
    """

    trainer: bytes
    number: int
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Offer:
    """A gradient for all parameters of an optimizer that a trainer offers.

    Attributes:
        key: Its name.
        read: The version of the optimizer whose parameters the gradient was computed with.
    """

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
    """A gradient that counts in a round.

    Attributes:
        key: Its offer.
        staleness: The number of steps between its reading and this round.
        weight: What it is multiplied with, before the division by the round's divisor.
    """

    key: OfferKey
    staleness: int
    weight: float


@dataclass(frozen=True, slots=True)
class Close:
    """A round is complete: its gradients make one step.

    Attributes:
        version: The version of the optimizer after the step.
        counted: The gradients, in the order in which they were offered.
        divisor: What their sum is divided by.
    """

    version: int
    counted: tuple[Counted, ...]
    divisor: int


@dataclass(frozen=True, slots=True)
class Dropped:
    """An offer does not count.

    Attributes:
        key: The offer.
        staleness: The number of steps since its reading.
        reason: Why it does not count.
    """

    key: OfferKey
    staleness: int
    reason: Reason


@dataclass(frozen=True, slots=True)
class Pooled:
    """A gradient counts in the open round, and its trainer goes on before that round is complete.

    Attributes:
        counted: The gradient.
        version: The version of the optimizer now.
        completes: Whether the round is complete with it. Its trainer goes on with the `Answer` after the `Close`.
    """

    counted: Counted
    version: int
    completes: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """The trainer of an offer whose round is complete may go on.

    Attributes:
        key: The offer.
        version: The version of the optimizer after its round.
    """

    key: OfferKey
    version: int


Event = Close | Dropped | Pooled | Answer
"""What the rounds say. A gradient that counts is part of one `Close`; its trainer goes on with `Pooled` before that, or
with `Answer` after it. One that is pooled and completes its round has both, and its trainer goes on with `Answer`."""
