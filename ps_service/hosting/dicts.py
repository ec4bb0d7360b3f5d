"""Compares the entries of some dicts with those of later, by identity."""

from __future__ import annotations

import itertools
from operator import is_, methodcaller
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_values: Final = methodcaller("values")


class Dicts:
    """The entries of some dicts at one moment, to be compared by identity with those of later."""

    __slots__ = ("_dicts", "_lengths", "_names", "_values")

    def __init__(self, dicts: Sequence[dict[str, Any]]) -> None:
        self._dicts = dicts
        self._lengths = list(map(len, dicts))
        self._names = [list(each) for each in dicts]
        self._values = list(itertools.chain.from_iterable(map(_values, dicts)))

    def are_same(self) -> bool:
        """Whether no value has been set or deleted."""
        try:
            now = itertools.chain.from_iterable(map(_values, self._dicts))
            return self._lengths == list(map(len, self._dicts)) and all(map(is_, now, self._values))
        except RuntimeError:
            return False  # another thread changes one

    def changes(self) -> list[tuple[int, str, Any]]:
        """The position of a dict, a name, and the value that is there now or `ABSENT`, for each change."""
        found, end = [], 0
        for i, (each, names) in enumerate(zip(self._dicts, self._names, strict=True)):
            start, end = end, end + len(names)
            given = self._values[start:end]
            now = each.copy()
            if len(now) == len(given) and all(map(is_, now.values(), given)):
                continue
            before = dict(zip(names, given, strict=True))
            for name in now.keys() | before.keys():
                value = now.get(name, ABSENT)
                if value is not before.get(name, ABSENT):
                    found.append((i, name, value))
        return found

    def restore(self) -> None:
        """Gives the dicts the entries that they had."""
        values = iter(self._values)
        for each, names in zip(self._dicts, self._names, strict=True):
            before = {name: next(values) for name in names}
            each.clear()
            each.update(before)


class _Absent:
    """The value of an attribute that is not there."""


ABSENT: Final = _Absent()
