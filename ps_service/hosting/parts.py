"""The objects of a bound copy that have attributes, and what a run sets there."""

from __future__ import annotations

from operator import is_
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import nn

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

    def fill(self, attributes: Attributes) -> None:
        """Gives the counterpart the attributes of the original, and those that are its own, and no others."""
        self.made.clear()
        self.made.update(attributes)
        self.made.update(self.own)

    def changes(self, begun: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        """Names and values of the attributes that a run has set and that others are to find.

        Args:
            begun: The attributes of the counterpart when the run began.
        """
        for name, value in self.made.items():
            if begun.get(name, _ABSENT) is not value and (name not in self.own or name in self.leading):
                yield name, value


def attribute_parts(parameters: Iterable[nn.Parameter]) -> list[Part]:
    """The attributes of parameters, as parts of their module."""
    return [Part(parameter.__dict__, {}, {}, parameter, None, []) for parameter in parameters]


def are_same(one: Attributes, other: dict[str, Any]) -> bool:
    """Whether two dicts have the same entries in the same order, compared by identity."""
    return len(one) == len(other) and all(map(is_, one, other)) and all(map(is_, one.values(), other.values()))


def has_entries(found: dict[str, Any], entries: dict[str, Any]) -> bool:
    """Whether a dict has these entries and no others, compared by identity, in any order."""
    if are_same(found, entries):
        return True
    return len(found) == len(entries) and all(found.get(name, _ABSENT) is value for name, value in entries.items())
