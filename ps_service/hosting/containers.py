"""Applies the changes of a run to containers of a copy to those of the original."""

from __future__ import annotations

import operator
import types
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ps_service.hosting.structure import contents


class Difference(NamedTuple):
    """The changes of a run to a container.

    Attributes:
        gone: The removed values.
        new: The added values.
    """

    gone: list[Any]
    new: list[Any]


class SharedContainer:
    """A list, dict, set, deque or closure cell of the original, and its counterpart in a copy.

    Args:
        original: The container of the original.
        made: Its counterpart.
        is_refilled: Whether the counterpart is refilled for each run, because its keys or items depend on parameters.
    """

    def __init__(self, original: Any, made: Any, is_refilled: bool) -> None:
        self.original = original
        self.made = made
        self.is_refilled = is_refilled
        self._known = entries(original)
        self._given: list[tuple[Any, ...]] = []

    def refill(self, counterpart: Callable[[Any], Any]) -> None:
        """Copies the contents of the original to the counterpart.

        Args:
            counterpart: Returns the counterpart of a value.
        """
        self._write(self.made, [tuple(map(counterpart, entry)) for entry in entries(self.original)])

    def note(self) -> None:
        """Notes the contents at the beginning of a run."""
        self._given = entries(self.made)

    @property
    def is_stale(self) -> bool:
        """Whether the original has changed since it was copied."""
        return not _are_same(self.original, entries(self.original), self._known)

    def forget(self) -> None:
        """Drops the note, at the end of the run."""
        self._given = []
        if self.is_refilled:
            self.made.clear()

    @property
    def is_changed(self) -> bool:
        """Whether the run has changed it."""
        return not _are_same(self.made, entries(self.made), self._given)

    def difference(self) -> Difference:
        """The changes of the run."""
        now = entries(self.made)
        if isinstance(self.made, (dict, set)):
            return Difference(_missing(self._given, now), _missing(now, self._given))
        same = min(len(now), len(self._given))
        moved = [i for i in range(same) if not _is_same(now[i], self._given[i])]
        gone = [self._given[i][0] for i in (*moved, *range(same, len(self._given)))]
        return Difference(gone, [now[i][0] for i in (*moved, *range(same, len(now)))])

    def hand_back(self, counterpart: Callable[[Any], Any]) -> None:
        """Applies the changes of the run to the original.

        Args:
            counterpart: Returns the original of a value.
        """
        given, now = self._given, entries(self.made)
        made = [tuple(map(counterpart, entry)) for entry in now]
        if isinstance(self.made, dict) and _order(now)[: len(given)] == _order(given):
            known = {id(key): value for key, value in given}
            for (key, value), (other_key, other) in zip(now, made, strict=True):
                if id(key) not in known or known[id(key)] is not value:
                    self.original[other_key] = other
        elif isinstance(self.made, list) and len(now) >= len(given) and all(map(_is_same, now, given)):
            self.original.extend(each for (each,) in made[len(given) :])
        else:
            self._write(self.original, made)
        self._known = entries(self.original)

    @staticmethod
    def _write(container: Any, made: Sequence[tuple[Any, ...]]) -> None:
        if isinstance(container, types.CellType):
            for (held,) in made:
                container.cell_contents = held
            if not made and contents(container):
                del container.cell_contents
            return
        container.clear()
        if isinstance(container, dict):
            for key, value in made:
                container[key] = value
        elif isinstance(container, set):
            container.update(each for (each,) in made)
        else:
            container.extend(each for (each,) in made)


def entries(container: Any) -> list[tuple[Any, ...]]:
    """The entries of a container: pairs of keys and values, or tuples of one item."""
    if isinstance(container, dict):
        return list(container.items())
    if isinstance(container, types.CellType):
        return [(held,) for held in contents(container)]
    return [(each,) for each in container]


def is_container(value: Any) -> bool:
    """Whether a value is a container whose contents can be replaced."""
    return isinstance(value, (list, dict, set, deque))


def _is_same(entry: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    return all(one is another for one, another in zip(entry, other, strict=True))


def _missing(found: Sequence[tuple[Any, ...]], others: Sequence[tuple[Any, ...]]) -> list[Any]:
    """The keys and values in some entries of a dict or set that are not in others."""
    known = {id(key): rest for key, *rest in others}
    missing = []
    for key, *rest in found:
        before = known.get(id(key))
        if before is None:
            missing.append(key)
        missing += rest if before is None or not all(map(operator.is_, rest, before)) else []
    return missing


def _entry_ids(entry: tuple[Any, ...]) -> tuple[int, ...]:
    return tuple(map(id, entry))


def _are_same(container: Any, found: Sequence[tuple[Any, ...]], others: Sequence[tuple[Any, ...]]) -> bool:
    if isinstance(container, set):
        return set(map(_entry_ids, found)) == set(map(_entry_ids, others))
    return len(found) == len(others) and all(map(_is_same, found, others))


def _order(found: Sequence[tuple[Any, ...]]) -> list[int]:
    return [id(key) for key, _ in found]
