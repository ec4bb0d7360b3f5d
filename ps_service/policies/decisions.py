"""The decisions about the rounds of an optimizer over several owners, in the order in which all owners carry them out.

One owner decides, the coordinator. It numbers its decisions and keeps those that another owner may not have.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ps_service.policies.offers import Close, OfferKey, Pooled

if TYPE_CHECKING:
    from ps_wire.policies import Policy


@dataclass(frozen=True, slots=True)
class Released:
    """The gradients of an offer are in no round and will be in none."""

    key: OfferKey


@dataclass(frozen=True, slots=True)
class Emptied:
    """The gradients in the sum of the open round are in no round and will be in none: their step has failed."""


@dataclass(frozen=True, slots=True)
class Left:
    """A trainer has left, or is lost, which ends its join `epoch`. Only offers that were counted before count."""

    trainer: bytes
    epoch: int


@dataclass(frozen=True, slots=True)
class Changed:
    """The rounds follow another policy from now on."""

    policy: Policy


Decision = Close | Pooled | Released | Emptied | Left | Changed
"""What an owner carries out: a step, gradients that are added to the sum of an open round, gradients that are freed, a
sum that is dropped, or another policy."""


class Entry(NamedTuple):
    """A decision and its number: 1 for the first of an optimizer."""

    number: int
    decision: Decision


class Decided(NamedTuple):
    """Decisions that a trainer brings to the owners that follow, and the number of its join, 0 if it is no member.

    All owners have carried out those up to `base`, which are forgotten.
    """

    epoch: int
    base: int
    entries: list[Entry]


class DecisionLog:
    """The decisions that some owners may not have carried out yet; `applied` says how far each of them has come."""

    def __init__(self, followers: Iterable[str]) -> None:
        self.number = 0
        self.applied = dict.fromkeys(followers, 0)
        self._entries: deque[Entry] = deque()
        # The last step, or gradients in a sum, that the owner which decides has made itself.
        self._made = 0

    def add(self, decision: Decision) -> None:
        """Appends a decision."""
        self.number += 1
        self._entries.append(Entry(self.number, decision))

    @property
    def base(self) -> int:
        """The number of the last decision that is forgotten."""
        return self._entries[0].number - 1 if self._entries else self.number

    def after(self, number: int) -> list[Entry]:
        """The decisions that are kept, and have a greater number."""
        return [each for each in self._entries if each.number > number]

    def unknown(self, applied: Mapping[str, int]) -> list[Entry]:
        """The decisions that an owner may not know, by the last that each has carried out, as far as that is known."""
        return self.after(min((applied[name] for name in self.applied if name in applied), default=self.base))

    def made(self, decision: Close | Pooled) -> None:
        """Notes that the owner which decides has made a step, or has added gradients to its sum."""
        self._made = next((each.number for each in self._entries if each.decision is decision), self._made)

    def ready(self, entries: Iterable[Entry]) -> list[Entry]:
        """Of decisions, those before the first step or sum that the owner which decides has not made yet: it may fail,
        and is not to be made by others then."""
        return list(itertools.takewhile(self._is_ready, entries))

    def _is_ready(self, entry: Entry) -> bool:
        return entry.number <= self._made or not isinstance(entry.decision, (Close, Pooled))

    def note(self, applied: Mapping[str, int]) -> None:
        """Notes what other owners have carried out, and forgets the decisions that all of them have. One that has done
        more than was decided follows a later state of this owner, which is lost: numbers go on."""
        for follower in self.applied.keys() & applied.keys():
            self.applied[follower] = max(self.applied[follower], applied[follower])
        newest = max(self.applied.values(), default=self.number)
        if newest > self.number:
            self._entries.clear()
            self.number = newest
        self._forget(min(self.applied.values(), default=self.number))

    def _forget(self, number: int) -> None:
        while self._entries and self._entries[0].number <= number:
            self._entries.popleft()

    def replace(self, decision: Decision, by: Decision) -> bool:
        """Puts another decision in the place of one that nobody was told. Says whether that was there. What comes
        before is made."""
        for place, entry in enumerate(self._entries):
            if entry.decision is decision:
                self._entries[place] = Entry(entry.number, by)
                self._made = max(self._made, entry.number)
                return True
        return False

    def cut(self, number: int) -> None:
        """Forgets the decisions with a greater number."""
        while self._entries and self._entries[-1].number > number:
            self._entries.pop()
        self.number = min(self.number, number)

    def extend(self, base: int, entries: Iterable[Entry]) -> None:
        """Appends decisions that were made before this owner has started again. Those up to `base` are forgotten."""
        for entry in entries:
            if entry.number > self.number:
                self.number = entry.number
                self._entries.append(entry)
        self.number = self._made = max(self.number, base)
        self._forget(base)

    def restore(self, number: int, applied: Mapping[str, int], entries: Iterable[Entry]) -> None:
        """Continues from the state of a checkpoint."""
        self.number = self._made = number
        self.applied.update(applied)
        self._entries = deque(entries)
