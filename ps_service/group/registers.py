"""The registers of a keeper of the directory, one for each name: which owner has it, and for how long.

This is the keepers' half of the protocol, without I/O and clock: the caller says what time it is. The owners' half is
in `group/lease.py`.

An owner acts for its name only while a majority of the keepers hold the name for it. A keeper holds a name for one
start of one owner at a time, and two majorities share a keeper, so no two owners act for one name at once. The owner
counts a lease of `LEASE_SECONDS` from before it asked; the keeper holds for `HOLD_SECONDS` from when it was asked, on
its own clock. A keeper need not write anything down: one that has started waits until all that it may have granted
before has run out.
"""

from __future__ import annotations

import enum
import math
from typing import TYPE_CHECKING, Final, NamedTuple

from ps_service.group.lineage import NO_LINEAGE, Lineage

if TYPE_CHECKING:
    from collections.abc import Sequence

LEASE_SECONDS: Final = 3.0
"""Seconds for which an owner acts for its name after it asked keepers of which a majority has granted it."""

HOLD_SECONDS: Final = 3.4
"""Seconds for which a keeper grants a name to nobody else. Each clock may be five percent too fast or too slow."""

CHECK_SECONDS: Final = 1.0
"""Seconds for which a keeper trusts its last look at whether another process has its data directory."""

WAIT_SECONDS: Final = 4.6
"""Seconds for which a keeper that has started grants nothing. All that an earlier process may have granted in its
place is over then."""

LISTED_SECONDS: Final = 30.0
"""Seconds for which an owner that is not heard of any more is still among the members."""


class Entry(NamedTuple):
    """An owner as a member of the group.

    `lineage` names this start of it, whether or not it has a data directory. Of two entries of one name, the one with
    the higher `epoch` is later. It has no number (`id`) before a keeper has proposed one. `keeper` is the name of the
    keeper that it is, empty for none. One that is `gone` has left, or was not heard of for `LISTED_SECONDS`.
    """

    name: str
    address: str
    id: int | None = None
    epoch: int = 1
    lineage: Lineage = NO_LINEAGE
    keeper: str = ""
    gone: bool = False


class Claim(NamedTuple):
    """An owner asks for its name, or to keep it; or says that it does not act for it any more, and `leaves`."""

    entry: Entry
    keepers: tuple[str, ...]
    leaves: bool = False


class Outcome(enum.IntEnum):
    """What a keeper answers to a claim. The values are those on the wire."""

    GRANTED = 1
    """The keeper holds the name for the owner, or has noted that it leaves."""
    HELD = 2
    """The keeper holds it for another start, which the answer names."""
    REPLACED = 3
    """A later start of the owner's state, which the answer names, has or wants the name."""
    STALE = 4
    """The epoch is not higher than that of the start which had the name last."""
    NUMBER = 5
    """The owner has no number, or that of another; the answer proposes one."""
    NOT_READY = 6
    """The keeper has started a moment ago, or does not know whether another process has its data directory."""
    OTHER_KEEPERS = 7
    """The owner was told other keepers than the keeper."""


class Answer(NamedTuple):
    """The answer of a `keeper` to a claim. `entry` is what stands in the register of the name."""

    keeper: str
    outcome: Outcome
    entry: Entry | None = None
    number: int = 0


class _Register:
    """What a keeper knows of one name: the last entry, and until when it holds and lists that; and the later start of
    the same state that wants the name."""

    __slots__ = ("entry", "held_until", "listed_until", "successor")

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.held_until = self.listed_until = 0.0
        self.successor: Entry | None = None


class Registers:
    """The registers of the keeper with a name, which is one of `keepers`. It began `now`, and grants nothing at first.

    Another process may take the place of one with a data directory, which `has_directory`: it grants only while it
    knows that it has it (`confirm`). `version` changes with the entries.
    """

    def __init__(self, keeper: str, keepers: Sequence[str], now: float, has_directory: bool = False) -> None:
        self.keeper: Final = keeper
        self.keepers: Final = tuple(keepers)
        self.version = 1
        self._ready = now + WAIT_SECONDS
        self._confirmed_until = -math.inf if has_directory else math.inf
        self._registers: dict[str, _Register] = {}

    def confirm(self, when: float) -> None:
        """At this time, or later, no other process had the data directory."""
        self._confirmed_until = when + CHECK_SECONDS

    def answer(self, claim: Claim, now: float) -> Answer:
        """Decides on a claim."""
        self._sweep(now)
        entry = claim.entry
        register = self._registers.get(entry.name)
        known = None if register is None else register.entry
        if claim.keepers != self.keepers:
            return Answer(self.keeper, Outcome.OTHER_KEEPERS)
        if not self._ready <= now <= self._confirmed_until:
            return Answer(self.keeper, Outcome.NOT_READY, known)
        if claim.leaves:
            self._leave(register, entry)
            return Answer(self.keeper, Outcome.GRANTED, known)
        if register is None:
            register = _Register(entry)
        elif (later := _later(register, entry)) is not None:
            return Answer(self.keeper, Outcome.REPLACED, later)
        elif not _is_same(register.entry, entry) and now < register.held_until:
            if entry.lineage.continues(register.entry.lineage):
                register.successor = entry
            return Answer(self.keeper, Outcome.HELD, known)
        elif entry.epoch < register.entry.epoch + (not _is_same(register.entry, entry)):
            return Answer(self.keeper, Outcome.STALE, known)
        number = self._number(entry)
        if number != entry.id:
            return Answer(self.keeper, Outcome.NUMBER, known, number)
        self._grant(register, entry, now)
        return Answer(self.keeper, Outcome.GRANTED, entry)

    def entries(self, now: float) -> list[Entry]:
        """The last entry of each name, also of those that are gone."""
        self._sweep(now)
        return [register.entry for register in self._registers.values()]

    def _grant(self, register: _Register, entry: Entry, now: float) -> None:
        if not _is_same(register.entry, entry):
            register.successor = None
        if self._registers.get(entry.name) is None or register.entry != entry:
            self._registers[entry.name] = register
            register.entry = entry
            self.version += 1
        register.held_until, register.listed_until = now + HOLD_SECONDS, now + LISTED_SECONDS

    def _leave(self, register: _Register | None, entry: Entry) -> None:
        """Frees a name at once. What was sent before a later claim of the same start changes nothing."""
        if register is not None and _is_same(register.entry, entry) and entry.epoch >= register.entry.epoch:
            register.held_until = register.listed_until = 0.0
            self._sweep(0.0)

    def _number(self, entry: Entry) -> int:
        """The number of an owner: the one that it has, if no other has or had that; else one above all others'."""
        taken = {each.entry.id for name, each in self._registers.items() if name != entry.name}
        if entry.id is not None and entry.id not in taken:
            return entry.id
        known = self._registers.get(entry.name)
        if known is not None and entry.id is None and known.entry.id is not None:
            return known.entry.id
        return 1 + max(len(self.keepers) - 1, *(each for each in taken if each is not None), entry.id or 0)

    def _sweep(self, now: float) -> None:
        for register in self._registers.values():
            if now >= register.listed_until and not register.entry.gone:
                register.entry = register.entry._replace(gone=True)
                self.version += 1


def _is_same(one: Entry, other: Entry) -> bool:
    """Whether two entries are of one start."""
    return one.lineage.incarnation == other.lineage.incarnation


def _later(register: _Register, entry: Entry) -> Entry | None:
    """The start that has taken, or wants, the place of one that claims the name."""
    for each in (register.successor, register.entry):
        if each is not None and each.lineage.continues(entry.lineage):
            return each
    return None
