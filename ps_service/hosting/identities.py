"""Tells whether a module looks up its own parts by identity, which fails for those of a view."""

from __future__ import annotations

import functools
import types
import weakref
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from ps_service.hosting.structure import all_below, attributes_of, contents, is_instance

if TYPE_CHECKING:
    from torch import nn

MOST: Final = 10_000
"""Most objects of a module that are examined."""

_SMALLEST: Final = 1 << 20
"""Smaller numbers are no `id()`."""

_TABLES: Final = ("WeakKeyDictionary.", "WeakSet.")
"""Prefixes of the qualified names of the functions that tables with weak keys call when a key is freed."""


def looks_itself_up(module: nn.Module) -> bool:
    """Whether a module has stored values under its own identity, or under that of a part.

    It caches a method with functools, keeps an `id()`, or is a key of a table with weak keys.
    """
    parts = [*module.modules(), *module.parameters()]
    if any(map(in_weak_table, parts)) or any(_has_cached_method(type(each)) for each in module.modules()):
        return True
    ids = set(map(id, parts))
    return any(number in ids for below in all_below(module, MOST) for number in _numbers(below))


def in_weak_table(value: Any) -> bool:
    """Whether a value is a key of a table with weak keys."""
    if not weakref.getweakrefcount(value):
        return False
    callbacks = [getattr(each, "__callback__", None) for each in weakref.getweakrefs(value)]
    return any(getattr(each, "__qualname__", "").startswith(_TABLES) for each in callbacks)


def _numbers(value: Any) -> Iterator[int]:
    """The large numbers in a container or among the attributes of an object."""
    found: list[Any] = []
    if isinstance(value, dict):
        found += [*value, *value.values()]
    elif isinstance(value, (list, tuple, set, frozenset, deque)):
        found += value
    elif isinstance(value, types.CellType):
        found += contents(value)
    if is_instance(value) and not type(value).__module__.startswith("torch."):  # its compiled modules know their own
        found += [each for attributes in attributes_of(value) for each in attributes.values()]
    return (each for each in found if type(each) is int and each >= _SMALLEST)


def _has_cached_method(cls: type) -> bool:
    own = [each for each in cls.__mro__ if not each.__module__.startswith("torch.")]
    return any(isinstance(value, _CACHED) for each in own for value in vars(each).values())


_CACHED: Final = type(functools.lru_cache(lambda: None))
