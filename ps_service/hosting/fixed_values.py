"""Fixed values: what is put together from its pieces at once, because they cannot be replaced one by one."""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Sequence
from typing import Any, Final

from ps_service.hosting.structure import SEQUENCES, WEAK, target_of

_FIXED: Final = (tuple, frozenset, functools.partial, types.MethodType, types.BuiltinMethodType)


def is_fixed(value: Any) -> bool:
    """Whether a value is put together from its pieces at once; it is no weak reference."""
    return isinstance(value, _FIXED)


def items(value: Any) -> list[Any]:
    """What such a value or a weak reference is made of."""
    if type(value) in WEAK:
        return [target_of(value)]
    if isinstance(value, SEQUENCES):
        return list(value)
    if isinstance(value, types.MethodType):
        return [value.__self__, value.__func__]
    if isinstance(value, types.BuiltinMethodType):
        return [value.__self__]
    return [value.func, *value.args, *value.keywords.values()]


def assembled(value: Any, items: Sequence[Any]) -> Any:
    """Such a value, of other pieces."""
    if type(value) in WEAK:
        return _weak(value, items[0])
    if isinstance(value, tuple):
        return type(value)(*items) if hasattr(value, "_fields") else tuple.__new__(type(value), items)
    if isinstance(value, frozenset):
        return type(value)(items)
    if isinstance(value, types.MethodType):
        return types.MethodType(items[1], items[0])
    if isinstance(value, types.BuiltinMethodType):
        return getattr(items[0], value.__name__)
    count = 1 + len(value.args)
    keywords = dict(zip(value.keywords, items[count:], strict=True))
    return functools.partial(items[0], *items[1:count], **keywords)


def _weak(value: Any, target: Any) -> Any:
    """A weak reference of a value's kind to something else."""
    if isinstance(value, weakref.WeakMethod):
        method: Any = value()
        return weakref.WeakMethod(types.MethodType(method.__func__, target))
    try:
        return weakref.ref(target) if type(value) is weakref.ReferenceType else weakref.proxy(target)
    except TypeError:
        return value  # to a plain list, for example
