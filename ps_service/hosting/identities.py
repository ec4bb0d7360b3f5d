"""Finds tables in which a module looks up its own parts by identity, which fails for copies."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Container, Iterator
from typing import Any, Final

import torch
from torch import nn

from ps_service.hosting.containers import entries, is_container
from ps_service.hosting.structure import all_below, attributes_of, is_atom, is_instance
from ps_wire.errors import InvalidArgumentError

MOST: Final = 10_000
"""Most objects of a module that are examined."""

_SMALLEST: Final = 1 << 20
"""Smaller numbers are no `id()`."""

_TABLES: Final = ("WeakKeyDictionary.", "WeakSet.")
"""Prefixes of the qualified names of the functions that tables with weak keys call when a key is freed."""

BY_ID: Final = "each call has other objects in their place. Use the name, or the parameter or layer itself"
BY_REFERENCE: Final = (
    "each call runs on a copy, which no other call finds there. Use an attribute or a dict of the module"
)


def check_identities(class_name: str, module: nn.Module) -> None:
    """Refuses a new module that has stored values under its own identity, where calls would not find them.

    Raises:
        InvalidArgumentError: It caches a method, keeps an `id()`, or is a key of a table with weak keys.
    """
    for each in module.modules():
        for name in _cached_methods(type(each)):
            raise InvalidArgumentError(
                f"{type(each).__name__}.{name} of {class_name} is cached by functools, under the module itself, but "
                f"{BY_REFERENCE}"
            )
    named = {**dict(module.named_parameters()), **{name or "the module": each for name, each in module.named_modules()}}
    for name, found in named.items():
        if in_weak_table(found):
            raise InvalidArgumentError(
                f"{class_name} has put {name!r} into a WeakKeyDictionary or WeakSet, but {BY_REFERENCE}"
            )
    ids = {id(found) for found in named.values()}
    for below in all_below(module, MOST):
        if any(map(ids.__contains__, _numbers(below))):
            raise InvalidArgumentError(f"{class_name} keeps the id() of a parameter or submodule, but {BY_ID}")


def in_weak_table(value: Any) -> bool:
    """Whether a value is a key of a table with weak keys."""
    if not weakref.getweakrefcount(value):
        return False
    callbacks = [getattr(each, "__callback__", None) for each in weakref.getweakrefs(value)]
    return any(getattr(each, "__qualname__", "").startswith(_TABLES) for each in callbacks)


def is_small(value: Any) -> bool:
    """Whether a value is no `id()` and refers to none, as far as that can be told from the value alone."""
    return isinstance(value, torch.Tensor) or (is_atom(value) and (type(value) is not int or value < _SMALLEST))


def keeps_id(value: Any, ids: Container[int]) -> bool:
    """Whether a value is one of these ids, or refers to one."""
    if type(value) is int:
        return value >= _SMALLEST and value in ids
    return any(number in ids for each in all_below(value, MOST, into_modules=False) for number in _numbers(each))


def _numbers(value: Any) -> Iterator[int]:
    """The large numbers in a container or among the attributes of an object."""
    found: list[Any] = []
    if is_container(value):
        found += [each for entry in entries(value) for each in entry]
    elif isinstance(value, (tuple, frozenset)):
        found += value
    if is_instance(value) and not type(value).__module__.startswith("torch."):  # its compiled modules know their own
        found += [each for attributes in attributes_of(value) for each in attributes.values()]
    return (each for each in found if type(each) is int and each >= _SMALLEST)


def _cached_methods(cls: type) -> list[str]:
    own = [each for each in cls.__mro__ if not each.__module__.startswith("torch.")]
    return [name for each in own for name, value in vars(each).items() if isinstance(value, _CACHED)]


_CACHED: Final = type(functools.lru_cache(lambda: None))
