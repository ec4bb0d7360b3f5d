"""What the rounds of an optimizer know of each trainer."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ps_service.policies.offers import Offer, OfferKey


class Waiting(NamedTuple):
    """An offer that is in no round yet.

    Attributes:
        arrival: Its place among all offers.
        offer: The offer.
    """

    arrival: int
    offer: Offer


class Ahead(NamedTuple):
    """An offer that is applied, and whose trainer waits because it is ahead of others.

    Attributes:
        key: The offer.
        clock: The trainer's clock after it.
        version: The version of the optimizer after its step.
    """

    key: OfferKey
    clock: int
    version: int


class Member:
    """A trainer that uses the optimizer.

    Attributes:
        offers: Its offers that are in no round yet, oldest first.
        ahead: Its offers that are applied, and that are not answered because it is ahead of others, oldest first.
        clock: How many of its offers have counted or were dropped, from the clock of the slowest when it joined.
    """

    def __init__(self, clock: int) -> None:
        self.offers: deque[Waiting] = deque()
        self.ahead: deque[Ahead] = deque()
        self.clock = clock
