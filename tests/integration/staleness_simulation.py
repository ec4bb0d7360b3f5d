"""The staleness of gradients under each policy, computed from the order of offers: written out, without the rounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import trainer_client as tc


class Arrival(NamedTuple):
    """An offer of a gradient.

    Attributes:
        trainer: Number of its trainer.
        read: The version whose parameters it was computed with.
    """

    trainer: int
    read: int


class Fate(NamedTuple):
    """What becomes of an offer.

    Attributes:
        staleness: Steps between the reading and its round.
        dropped: Why it does not count; empty if it does.
    """

    staleness: int
    dropped: str = ""


def simulate(policy: tc.policies.Policy, trainers: int, arrivals: Sequence[Arrival]) -> dict[int, Fate]:
    """The fate of each offer, by its place in the order of arrival; those that still wait are left out.

    Raises:
        AssertionError: The policy would not have let an offer come yet.
    """
    if isinstance(policy, tc.policies.Quorum) and policy.of is not None:
        return _backup(policy, arrivals)
    fates, version, pooled, clocks = dict[int, Fate](), 0, 0, [0] * trainers
    stale = getattr(policy, "stale", None)
    for place, (trainer, read) in enumerate(arrivals):
        if isinstance(policy, tc.policies.BoundedStaleness):
            assert clocks[trainer] - min(clocks) <= policy.bound, "a trainer is too far ahead"
        clocks[trainer] += 1
        staleness = version - read
        if isinstance(stale, tc.policies.Reject) and staleness > stale.after:
            fates[place] = Fate(staleness, "stale")
            continue
        fates[place] = Fate(staleness)
        pooled += 1
        if pooled == (policy.count if isinstance(policy, tc.policies.Quorum) else 1):
            version, pooled = version + 1, 0
    return fates


def _backup(policy: tc.policies.Quorum, arrivals: Sequence[Arrival]) -> dict[int, Fate]:
    """Backup workers: a round takes the first gradients of some of the trainers."""
    fates: dict[int, Fate] = {}
    version, waiting = 0, list[int]()
    for place, arrival in enumerate(arrivals):
        assert all(arrivals[each].trainer != arrival.trainer for each in waiting), "it offers while it waits"
        waiting.append(place)
        while True:
            if policy.late == "drop":
                late = [each for each in waiting if version > arrivals[each].read]
                fates.update({each: Fate(version - arrivals[each].read, "late") for each in late})
                waiting = [each for each in waiting if each not in late]
            if len(waiting) < policy.count:
                break
            taken, waiting = waiting[: policy.count], waiting[policy.count :]
            fates.update({each: Fate(version - arrivals[each].read) for each in taken})
            version += 1
    return fates
