"""Options for the life of a row: when a new id gets one, and when rows are removed. Values that both sides know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from ps_wire.close_names import suggesting
from ps_wire.errors import InvalidArgumentError
from ps_wire.numbers import check_finite, check_seconds, check_whole
from ps_wire.shown import shown

By = Literal["least_recent", "least_frequent", "smallest_norm"]

_MOST_SIGHTINGS = 255
"""Sightings are counted in 8 bits."""


@suggesting
@dataclass(frozen=True, slots=True)
class AfterSightings:
    """An id gets a row when training has looked it up a number of times.

    Sightings of ids without a row are counted by a counting Bloom filter (L. Fan et al., "Summary Cache", SIGCOMM 1998)
    with conservative update (C. Estan, G. Varghese, SIGCOMM 2002), in memory of fixed size. It halves all counts each
    time that it has counted an eighth as many sightings as it has counters, so that it stays half empty: ids that come
    rarely are forgotten, and at most one of forty gets its row too early.

    Attributes:
        sightings: With which sighting the row comes, 2 to 255. One look-up counts once, however often it has the id.
        counters: Size of the filter in bytes, on each owner.
        default: What ids without a row have as each of their values.
    """

    kind: ClassVar[str] = "after_sightings"
    sightings: int
    counters: int = 1 << 22
    default: float = 0.0

    def __post_init__(self) -> None:
        check_whole("sightings", self.sightings, 2, _MOST_SIGHTINGS)
        check_whole("counters", self.counters, 1 << 10, 1 << 30)
        check_finite("default", self.default)


@suggesting
@dataclass(frozen=True, slots=True)
class WithProbability:
    """An id gets a row with some probability each time that training looks it up.

    Attributes:
        probability: The probability, above 0 and at most 1.
        default: What ids without a row have as each of their values.
    """

    kind: ClassVar[str] = "with_probability"
    probability: float
    default: float = 0.0

    def __post_init__(self) -> None:
        check_finite("probability", self.probability, 0, 1)
        if not self.probability:
            raise InvalidArgumentError("with a probability of 0 no id would ever get a row")
        check_finite("default", self.default)


Admission = AfterSightings | WithProbability


@suggesting
@dataclass(frozen=True, slots=True)
class Eviction:
    """When rows are removed. Their ids begin anew when they come again.

    Attributes:
        ttl: Rows that training has not looked up for this many seconds have expired, and `evict` removes them; None if
            rows do not expire.
        at_capacity: Which rows make room when a table has as many rows as it may; None if more rows are refused.
        share: The part of the largest number of rows that is removed then at once.
        spare: Rows that training has looked up in this many last seconds stay in any case: passes that are open may
            have gradients for them. Rows that are loaded count as looked up once, at that time.
    """

    kind: ClassVar[str] = "eviction"
    ttl: float | None = None
    at_capacity: By | None = None
    share: float = 0.05
    spare: float = 60.0

    def __post_init__(self) -> None:
        if self.ttl is not None:
            check_seconds("ttl", self.ttl)
        if self.at_capacity not in (None, "least_recent", "least_frequent", "smallest_norm"):
            raise InvalidArgumentError(
                f'at_capacity is "least_recent", "least_frequent" or "smallest_norm", not {shown(self.at_capacity)}'
            )
        check_finite("share", self.share, 0, 1)
        check_seconds("spare", self.spare)
