"""The parts of a bound copy: its objects with attributes, and what a run sets there."""

from __future__ import annotations

from operator import is_
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ps_service.hosting.structure import Attributes

_ABSENT: Final = object()


class Part(NamedTuple):
    """One object of a copy that has attributes.

    Attributes:
        original: The attributes of the hosted object.
        made: The attributes of its counterpart.
        own: The attributes that are the counterpart's own; all others are shared with the original.
        holder: The hosted object.
        copy: Its counterpart.
        leading: Names of those own attributes that lead to a parameter or submodule, and are none of torch's own.
    """

    original: Attributes
    made: Attributes
    own: dict[str, Any]
    holder: Any
    copy: Any
    leading: list[str]

    @property
    def key(self) -> tuple[int, bool]:
        """Tells it from other parts, in every copy of the module alike."""
        return id(self.holder), isinstance(self.original, dict)


class PartRun:
    """One part of a bound copy while runs use it, one after the other.

    Most runs set no attribute. Then the part needs no work between two runs, if the original has not changed either.

    Args:
        part: The part.
    """

    __slots__ = ("_begun", "_given", "part")

    def __init__(self, part: Part) -> None:
        self.part = part
        self._given: dict[str, Any] = {}
        self._begun: dict[str, Any] = {}

    def refresh(self) -> None:
        """Takes over the attributes of the original, if they have changed."""
        if not _are_same(self.part.original, self._given):
            self._given = given = self.part.original.copy()
            self._fill(given)

    def begin(self) -> None:
        """A run begins with the attributes as they are now."""
        self._begun = self.part.made.copy()

    @property
    def is_changed(self) -> bool:
        """Whether the run has set or deleted an attribute."""
        return not _are_same(self.part.made, self._begun)

    def changes(self) -> Iterator[tuple[str, Any]]:
        """The attributes that the run has set and that others are to find: names and values."""
        part, begun = self.part, self._begun
        for name, value in part.made.items():
            if begun.get(name, _ABSENT) is not value and (name not in part.own or name in part.leading):
                yield name, value

    def deleted(self) -> set[str]:
        """The attributes of the original that the run has deleted."""
        return self._given.keys() - self.part.made.keys()

    def end(self) -> None:
        """The run is over. What belonged to it alone goes; hooks that run on the way back find everything else."""
        if self.is_changed:
            self._given = {}
            self._fill(self.part.original)
        self._begun = {}

    def _fill(self, attributes: Attributes | dict[str, Any]) -> None:
        made = self.part.made
        made.clear()
        made.update(attributes)
        made.update(self.part.own)


def _are_same(one: Attributes, other: dict[str, Any]) -> bool:
    """Whether two dicts have the same entries in the same order, compared by identity."""
    return len(one) == len(other) and all(map(is_, one, other)) and all(map(is_, one.values(), other.values()))


def has_entries(found: dict[str, Any], entries: dict[str, Any]) -> bool:
    """Whether a dict has these entries and no others, compared by identity, in any order."""
    if _are_same(found, entries):
        return True
    return len(found) == len(entries) and all(found.get(name, _ABSENT) is value for name, value in entries.items())
