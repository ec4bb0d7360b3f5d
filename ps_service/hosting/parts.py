"""The objects of a bound copy that have attributes, and the attributes that a run sets there."""

from __future__ import annotations

from itertools import chain
from operator import is_, methodcaller
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from torch import nn

    from ps_service.hosting.structure import Attributes

_ABSENT: Final = object()

_values: Final = methodcaller("values")


class Part(NamedTuple):
    """One object of a copy that has attributes.

    Attributes:
        original: The attributes of the hosted object.
        made: The attributes of its counterpart.
        own: The attributes that the counterpart has for itself; all others are shared with the original.
        holder: The hosted object.
        copy: Its counterpart.
        leading: Names of the attributes in `own` that refer to a parameter or submodule, except torch's own.
    """

    original: Attributes
    made: Attributes
    own: dict[str, Any]
    holder: Any
    copy: Any
    leading: list[str]

    @property
    def key(self) -> tuple[int, bool]:
        """A key for the part that is equal in every copy of the module."""
        return id(self.holder), isinstance(self.original, dict)

    def fill(self, attributes: Attributes) -> None:
        """Sets the attributes of the counterpart to those of the original and its own, and removes all others."""
        self.made.clear()
        self.made.update(attributes)
        self.made.update(self.own)

    def changes(self, begun: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        """Names and values of the attributes that a run has set and that later runs share.

        Args:
            begun: The attributes of the counterpart when the run began.
        """
        for name, value in self.made.items():
            if begun.get(name, _ABSENT) is not value and (name not in self.own or name in self.leading):
                yield name, value


def attribute_parts(parameters: Iterable[nn.Parameter]) -> list[Part]:
    """The attributes of parameters, as parts of their module."""
    return [Part(parameter.__dict__, {}, {}, parameter, None, []) for parameter in parameters]


def differing(found: Sequence[Attributes], known: Sequence[dict[str, Any]]) -> list[int]:
    """Indices at which the dicts of two lists do not have the same entries in the same order, compared by identity.

    Usually there are none. Then all of them are compared at once, in C.
    """
    try:
        if _are_same(found, known):
            return []
    except RuntimeError:
        pass  # another thread has changed one meanwhile
    return [i for i in range(len(found)) if not _are_same([found[i].copy()], [known[i]])]


def _are_same(found: Sequence[Attributes], known: Sequence[Attributes]) -> bool:
    return (
        list(map(len, found)) == list(map(len, known))
        and all(map(is_, chain.from_iterable(found), chain.from_iterable(known)))
        and all(map(is_, chain.from_iterable(map(_values, found)), chain.from_iterable(map(_values, known))))
    )


def has_entries(found: dict[str, Any], entries: dict[str, Any]) -> bool:
    """Whether a dict has these entries and no others, compared by identity, in any order."""
    return len(found) == len(entries) and all(found.get(name, _ABSENT) is value for name, value in entries.items())
