"""Which trainers of the group are slow, and why. The page and /status.json tell the same."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Sequence
from typing import TYPE_CHECKING, Final

from ps_service.monitoring.watched_owner import ANSWERING

if TYPE_CHECKING:
    from ps_service.monitoring.watched_owner import WatchedOwner
    from ps_wire.v1.operations_pb2 import SessionInfo

SLOW_SHARE: Final = 0.6
"""A trainer with less than this share of the usual rate, that of the median trainer, is slow."""

_WEIGHT: Final = 2 / 11
"""Weight of the latest look in the average of how often rounds wait for a trainer: that of some ten looks."""


def trainers_of(owners: Sequence[WatchedOwner], names: Container[str]) -> dict[str, list[SessionInfo]]:
    """The sessions of each trainer, by its id. Those of owners with each other are none, unless they train."""
    found: defaultdict[str, list[SessionInfo]] = defaultdict(list)
    for owner in owners:
        for each in () if owner.status is None else owner.status.trainers:
            if each.steps or each.member not in names:
                found[each.id].append(each)
    return found


class SlowTrainers:
    """The slow trainers, at each look at the lists of the owners: `why` they are, by their ids."""

    def __init__(self) -> None:
        self.why: dict[str, str] = {}
        # How often rounds have waited for a trainer lately, from 0 to 1.
        self._waited: dict[str, float] = {}

    def look(self, owners: Sequence[WatchedOwner]) -> None:
        """Takes note of the lists of all owners, as they are now."""
        answering = [each for each in owners if each.state in ANSWERING and each.status is not None]
        trainers = trainers_of(answering, {each.name for each in owners})
        waiting = {
            name[:8]
            for owner in answering
            if owner.status is not None
            for optimizer in owner.status.optimizers
            for name in optimizer.waiting_for
        }
        # Where rounds wait for all, none of them holds up the others.
        everybody = all(id[:8] in waiting for id in trainers)
        before = self._waited
        self._waited = {
            id: (was := before.get(id, 0.0)) + ((id[:8] in waiting and not everybody) - was) * _WEIGHT
            for id in trainers
        }
        rates = {
            id: max(each.steps_per_second for each in sessions)
            for id, sessions in trainers.items()
            if any(each.connected for each in sessions)
        }
        known = sorted(rate for rate in rates.values() if rate > 0)
        usual = known[len(known) // 2] if len(known) > 1 else 0.0  # of two, the faster one
        self.why = {}
        for id, rate in rates.items():
            if self._waited[id] > 0.5 and len(trainers) > 1:
                self.why[id] = "rounds wait for it"
            elif 0 < rate < SLOW_SHARE * usual:
                self.why[id] = f"{100 * rate / usual:.0f} % of the usual rate"
