"""The rounds of an optimizer over several owners, on an owner that follows the decisions of another."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from ps_service.policies.decisions import Changed, Decision, Emptied, Entry, Left, Released
from ps_service.policies.offers import Close, OfferKey, Pooled
from ps_wire.errors import OverloadedError, SessionLostError

K = TypeVar("K")

MOST_HELD: Final = 1024
"""The most offers of one optimizer that an owner holds."""

_MOST_REMEMBERED: Final = 4096
"""The most offers that are over or withdrawn, trainers that have left, and losses that are remembered."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Decisions that no owner can repeat, because this owner has started again with an older state."""

    first: int
    last: int


class Recent(OrderedDict[K, int], Generic[K]):
    """The entries of a dictionary that were set last."""

    def __setitem__(self, key: K, value: int) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > _MOST_REMEMBERED:
            self.popitem(last=False)


class Follower:
    """What an owner knows of the rounds that another owner decides: a participant of a two-phase commit.

    It is prepared while it holds the gradients of an offer, and a decision commits them, or aborts; `applied` is the
    number of the last. `held` has the bytes of each offer that none has named, `pool` the offers in the sum of the open
    round, and `missing`, for each offer of a round, how many of its gradients this owner had lost.
    """

    def __init__(self, applied: int = 0) -> None:
        self.applied = applied
        self.held: dict[OfferKey, int] = {}
        self.pool: set[OfferKey] = set()
        self.missing: Recent[OfferKey] = Recent()
        self._over: Recent[OfferKey] = Recent()
        self._left: Recent[bytes] = Recent()

    def check(self, key: OfferKey, nbytes: int, most_bytes: int) -> None:
        """Raises unless the gradients of an offer may be held: `OverloadedError`, if the bytes of all were too many. A
        `SessionLostError` says that the trainer has left under this epoch, or has given the offer up."""
        if key in self._over or key.epoch <= self._left.get(key.trainer, 0):
            raise SessionLostError("the trainer has left the rounds of this optimizer, or has given this offer up")
        if key in self.held:
            return
        total = sum(self.held.values())
        if len(self.held) >= MOST_HELD or (self.held and total + nbytes > most_bytes):
            raise OverloadedError(
                f"this owner holds the gradients of {len(self.held)} offers ({total:,} bytes) whose rounds are not "
                "decided; it holds no more"
            )

    def hold(self, key: OfferKey, nbytes: int) -> None:
        """Holds the gradients of an offer that `check` has accepted."""
        self.held[key] = nbytes

    def release(self, key: OfferKey) -> bool:
        """Forgets an offer that was never made to the coordinator. Says whether it was held."""
        self._over[key] = 1
        return self.held.pop(key, None) is not None

    def settle(self, base: int, entries: Sequence[Entry]) -> list[Decision | Gap]:
        """Takes decisions, and returns in order those to carry out that were not before. `base` is the last that the
        coordinator has forgotten. What comes after a gap waits until another brings all."""
        done: list[Decision | Gap] = []
        if base > self.applied:
            done.append(Gap(self.applied + 1, base))
            self.applied = base
        for number, decision in entries:
            if number == self.applied + 1:
                self.applied = number
                self._carry_out(decision)
                done.append(decision)
        return done

    def _carry_out(self, decision: Decision) -> None:
        if isinstance(decision, Close):
            keys = [each.key for each in decision.counted]
            missing = sum(key not in self.held and key not in self.pool for key in keys)
            for key in keys:
                self.held.pop(key, None)
                self.pool.discard(key)
                if missing:
                    self.missing[key] = missing
        elif isinstance(decision, Pooled):
            if self.held.pop(decision.counted.key, None) is not None:
                self.pool.add(decision.counted.key)
        elif isinstance(decision, Released):
            self.release(decision.key)
        elif isinstance(decision, Emptied):
            self.pool.clear()
        elif isinstance(decision, Left):
            self._left[decision.trainer] = decision.epoch
            for key in [key for key in self.held if key.trainer == decision.trainer and key.epoch <= decision.epoch]:
                del self.held[key]
        else:
            assert isinstance(decision, Changed)
