"""Replaces objects by others wherever a value refers to them."""

from __future__ import annotations

import functools
import types
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from torch import nn

from ps_service.hosting.structure import (
    WEAK,
    all_below,
    attributes_of,
    contents,
    is_atom,
    is_instance,
    set_attribute,
    target_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Sequence

MOST: Final = 1_000_000
"""Most objects behind one value that are examined."""

_FIXED: Final = (tuple, frozenset, functools.partial, types.MethodType, types.BuiltinMethodType)
"""Types of immutable values, which are assembled again."""


class Replacing:
    """Replaces objects by what `substitute` returns for them, and the same object always by the same one.

    A mutable object stays the same, with other contents. An immutable one (tuple, bound method, partial) is assembled
    again. Unless it goes `everywhere`, modules and weak references stay as they are. So do the contents of objects with
    an `id()` in `ends`.
    """

    def __init__(self, substitute: Callable[[Any], Any], everywhere: bool = False, ends: Container[int] = ()) -> None:
        self._substitute = substitute
        self._everywhere = everywhere
        self._ends = ends
        # With the originals, so that no `id()` is used again.
        self._made: dict[int, tuple[Any, Any]] = {}

    def of(self, value: Any) -> Any:
        """The replacement of a value; for a mutable value the value itself, with other contents."""
        if not is_atom(value):
            for each in list(all_below(value, MOST, self._everywhere, self._ends)):
                if id(each) not in self._ends and (self._everywhere or not isinstance(each, nn.Module)):
                    self._replace_in(each)
        return self._resolved(value)

    def _resolved(self, value: Any) -> Any:
        """The replacement of a value, without changing the contents of any object."""
        if is_atom(value):
            return value
        known = self._made.get(id(value))
        if known is not None:
            return known[1]
        made = self._substitute(value)
        if made is value and (isinstance(value, _FIXED) or (self._everywhere and type(value) in WEAK)):
            before, assemble = _taken_apart(value)
            after = [self._resolved(item) for item in before]
            made = value if _are_same(before, after) else assemble(after)
        self._made[id(value)] = value, made
        return made

    def _replace_in(self, value: Any) -> None:
        if isinstance(value, (list, deque)):
            self._replace_items(value, list(enumerate(value)))
        elif isinstance(value, dict):
            self._replace_in_dict(value)
        elif isinstance(value, set):
            before = list(value)
            after = [self._resolved(item) for item in before]
            if not _are_same(before, after):
                value.clear()
                value.update(after)
        elif type(value) is types.CellType:
            for held in contents(value):
                if (made := self._resolved(held)) is not held:
                    value.cell_contents = made
        elif type(value) is types.FunctionType:
            if (defaults := self._resolved(value.__defaults__)) is not value.__defaults__:
                value.__defaults__ = defaults
            for named in (value.__kwdefaults__, value.__dict__):
                self._replace_items(named, list((named or {}).items()))
        if is_instance(value) and not isinstance(value, _FIXED):
            for name, item in attributes_of(value):
                if (made := self._resolved(item)) is not item:
                    set_attribute(value, name, made)

    def _replace_in_dict(self, value: dict[Any, Any]) -> None:
        keys = list(value)
        made = [self._resolved(key) for key in keys]
        if _are_same(keys, made):
            self._replace_items(value, list(value.items()))
            return
        contents = [self._resolved(each) for each in value.values()]
        value.clear()
        value.update(zip(made, contents, strict=True))

    def _replace_items(self, container: Any, items: Sequence[tuple[Any, Any]]) -> None:
        for key, item in items:
            made = self._resolved(item)
            if made is not item:
                container[key] = made


def _are_same(before: Sequence[Any], after: Sequence[Any]) -> bool:
    return all(old is new for old, new in zip(before, after, strict=True))


def _taken_apart(value: Any) -> tuple[list[Any], Callable[[list[Any]], Any]]:
    """What an immutable value or a weak reference is assembled from, and what assembles a value like it from others."""
    if type(value) in WEAK:
        return [target_of(value)], lambda items: _weak(value, items[0])
    if isinstance(value, tuple):
        is_named = hasattr(value, "_fields")
        return list(value), lambda items: type(value)(*items) if is_named else tuple.__new__(type(value), items)
    if isinstance(value, frozenset):
        return list(value), type(value)
    if isinstance(value, types.MethodType):
        return [value.__func__, value.__self__], lambda items: types.MethodType(*items)
    if isinstance(value, types.BuiltinMethodType):
        return [value.__self__], lambda items: getattr(items[0], value.__name__)
    count = len(value.args)

    def partial(items: list[Any]) -> Any:
        function, args, named = items[0], items[1 : count + 1], items[count + 1 :]
        return functools.partial(function, *args, **dict(zip(value.keywords, named, strict=True)))

    return [value.func, *value.args, *value.keywords.values()], partial


def _weak(value: Any, target: Any) -> Any:
    """A weak reference of the same kind to another object."""
    if isinstance(value, weakref.WeakMethod):
        method: Any = value()
        return weakref.WeakMethod(types.MethodType(method.__func__, target))
    try:
        return weakref.ref(target) if type(value) is weakref.ReferenceType else weakref.proxy(target)
    except TypeError:
        return value  # the target cannot be weakly referenced, such as a plain list
