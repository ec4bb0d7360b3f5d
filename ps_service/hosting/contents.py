"""What dicts and objects refer to at one moment, to tell later what has changed."""

from __future__ import annotations

import itertools
from operator import is_, methodcaller
from typing import TYPE_CHECKING, Any, Final

import torch

from ps_service.hosting.running_statistics import with_statistics
from ps_service.hosting.structure import all_below, below

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

ABSENT: Final = type("Absent", (), {})()
"""The value of an attribute that is not there."""

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
        found: list[tuple[int, str, Any]] = []
        for i, (before, now) in enumerate(zip(self._before(), [each.copy() for each in self._dicts], strict=True)):
            for name in now.keys() | before.keys():
                value = now.get(name, ABSENT)
                if value is not before.get(name, ABSENT):
                    found.append((i, name, value))
        return found

    def restore(self) -> None:
        """Gives the dicts the entries that they had."""
        for each, before in zip(self._dicts, self._before(), strict=True):
            each.clear()
            each.update(before)

    def _before(self) -> list[dict[str, Any]]:
        values = iter(self._values)  # each dict takes as many as it has names
        return [dict(zip(names, values, strict=False)) for names in self._names]


class Contents:
    """The objects behind a module's attributes: its parts, containers, closures and instances, each with its contents.
    Running statistics do not count: they have locks of their own."""

    def __init__(self, module: nn.Module) -> None:
        statistics = {id(each) for layer in with_statistics(module) for each in layer.buffers()}
        self._contents = [(each, _within(each)) for each in all_below(module) if id(each) not in statistics]

    def are_same(self) -> bool:
        """Whether all of them refer to the same objects as before, and no tensor was written to."""
        return all(_are_same(_within(each), before) for each, before in self._contents)


def _within(value: Any) -> list[Any]:
    if isinstance(value, torch.Tensor):
        return [value._version, value.requires_grad]
    return [*below(value), *value.keys()] if isinstance(value, dict) else list(below(value))


def _are_same(now: list[Any], before: list[Any]) -> bool:
    return len(now) == len(before) and all(map(is_, now, before))
