"""The lease of an owner on its name, granted by a majority of the keepers of the directory: the owner's half of the
protocol of `group/registers.py`, without I/O and clock."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ps_service.group.registers import LEASE_SECONDS, Answer, Claim, Entry, Outcome
from ps_wire.errors import InvalidArgumentError, NameConflictError, PsError, ReplacedError

if TYPE_CHECKING:
    from collections.abc import Sequence


class Lease:
    """What one start of an owner knows of its claims. It may act for its name `until` then, on the clock of `heard`.

    `entry` is what it claims now. Its number does not change while the owner may act.
    """

    def __init__(self, entry: Entry, keepers: Sequence[str]) -> None:
        self.entry = entry
        self.until = -math.inf
        self._keepers = tuple(keepers)
        self._majority = len(self._keepers) // 2 + 1
        # When the last claim of the present entry was sent that a keeper has granted.
        self._granted: dict[str, float] = {}
        # The last answers of keepers that have not granted it.
        self._refused: dict[str, Answer] = {}

    @property
    def had(self) -> bool:
        """Whether there was a majority."""
        return self.until > -math.inf

    def claim(self, leaves: bool = False) -> Claim:
        """What to ask each keeper now. One that `leaves` must not act for its name any more."""
        return Claim(self.entry, self._keepers, leaves)

    def heard(self, claim: Claim, sent: float, answer: Answer) -> None:
        """A keeper has answered a claim, which was made and sent at this time or later."""
        if answer.keeper not in self._keepers or claim.leaves:
            return
        if answer.outcome is Outcome.GRANTED:
            if claim.entry == self.entry:
                self._grant(answer.keeper, sent)
            return
        self._refused[answer.keeper] = answer
        if claim.entry != self.entry:
            return
        if answer.outcome is Outcome.NUMBER and sent > self.until:  # else its number is the one that counts
            self._change(self.entry._replace(id=answer.number))
        elif answer.outcome in (Outcome.HELD, Outcome.STALE) and answer.entry is not None:
            self._change(self.entry._replace(epoch=max(self.entry.epoch, answer.entry.epoch + 1)))

    def verdict(self, now: float) -> PsError | None:
        """Why the owner must not act for its name any more, or cannot begin to; None if it can, or has to go on asking.

        `ReplacedError` if a later start, or another owner, has its place. At the beginning also `NameConflictError`,
        and `InvalidArgumentError` if the keepers were told other keepers.
        """
        refused = self._refused.values()
        for each in refused:
            if each.outcome is Outcome.REPLACED and each.entry is not None:
                return ReplacedError(
                    f"a later start of the state of {self.entry.name!r} has taken its place, at {each.entry.address}; "
                    "this one takes no requests any more"
                )
        others = [each.entry for each in refused if each.outcome is Outcome.HELD and each.entry is not None]
        if self.had:
            return self._lost(others) if now > self.until else None
        if any(each.outcome is Outcome.OTHER_KEEPERS for each in refused):
            return InvalidArgumentError(
                f"the directory is not kept at {', '.join(self._keepers)}, or not in this order: give all owners of a "
                "group the same list"
            )
        # A start before this one, or one that was at this address, has ended or will be told.
        foreign = [
            each
            for each in others
            if each.address != self.entry.address and not self.entry.lineage.continues(each.lineage)
        ]
        if len(self._keepers) - len(foreign) < self._majority:
            return NameConflictError(
                f"the name {self.entry.name!r} is not unique: the member at {foreign[0].address} has it; choose "
                "another name, or wait until that one has ended"
            )
        return None

    def unanswered(self, keeper: str) -> None:
        """A keeper has not answered the last claim."""
        self._refused.pop(keeper, None)

    def missing(self, now: float) -> dict[str, Outcome | None]:
        """The keepers whose grant of the present entry is over, or has not come, and what they have answered last; None
        if they do not answer."""
        since = now - LEASE_SECONDS
        found = {each: self._refused.get(each) for each in self._keepers if self._granted.get(each, -math.inf) < since}
        return {keeper: None if answer is None else answer.outcome for keeper, answer in found.items()}

    def _lost(self, others: Sequence[Entry]) -> PsError | None:
        """Whether another owner has got the name after the lease of this one had run out."""
        for each in others:
            if sum(each.lineage.incarnation == other.lineage.incarnation for other in others) >= self._majority:
                return ReplacedError(
                    f"another owner has taken the name {self.entry.name!r}, at {each.address}, while a majority of the "
                    "keepers of the directory could not be reached from here; this one takes no requests any more"
                )
        return None

    def _grant(self, keeper: str, sent: float) -> None:
        self._refused.pop(keeper, None)
        self._granted[keeper] = max(sent, self._granted.get(keeper, -math.inf))
        if len(self._granted) >= self._majority:
            # So many keepers have granted what was asked then or later.
            since = sorted(self._granted.values(), reverse=True)[self._majority - 1]
            self.until = max(self.until, since + LEASE_SECONDS)

    def _change(self, entry: Entry) -> None:
        if entry != self.entry:
            self.entry = entry
            self._granted.clear()
