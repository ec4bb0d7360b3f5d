"""Finds the objects behind a module's attributes.

It follows containers, bound methods, closures and defaults of functions, partials, weak references, and the attributes
of instances of ordinary Python classes, in any combination and also in cycles. It does not follow classes, Python
modules, generators, optimizers, and objects of the process such as threads, locks and loggers.
"""

from __future__ import annotations

import functools
import sys
import types
import weakref
from collections import deque
from collections.abc import Container, Iterator
from contextlib import suppress
from typing import Any, Final

import torch
from torch import nn

_ATOMS: Final[frozenset[type]] = frozenset(
    {
        *(int, float, complex, bool, str, bytes, type(None), type, range, slice),
        *(torch.dtype, torch.device, torch.Size, torch.Generator, types.ModuleType, types.CodeType),
    }
)
"""Types whose instances refer to no other objects."""

SEQUENCES: Final = (list, tuple, set, frozenset, deque)

WEAK: Final = (weakref.ReferenceType, weakref.WeakMethod, weakref.ProxyType, weakref.CallableProxyType)

MOST: Final = 1000
"""Most objects behind one attribute that are searched for tensors."""

MOST_OF_MODULE: Final = 10_000
"""Most objects of a module that are looked at."""

_HEAP_TYPE: Final = 1 << 9
"""The flag of classes that a class statement has made."""

_CLOSED: Final = (
    *("threading", "logging", "asyncio", "concurrent", "multiprocessing", "queue", "contextvars", "weakref"),
    *("torch._dynamo", "torch._inductor", "torch._functorch", "torch.fx", "torch.optim", "torch.jit", "torch.utils"),
    *("numpy", "ps_service", "ps_wire", "trainer_client"),
)
"""Packages whose objects are never followed, because copies of them would not work, or they belong to the process."""


def below(value: Any) -> Iterator[Any]:
    """The objects that a value refers to directly."""
    kind = type(value)
    if kind in _ATOMS or isinstance(value, (torch.Tensor, type)):
        return
    if isinstance(value, dict):
        yield from (key for key in value if type(key) is not str)
        yield from list(value.values())
    elif isinstance(value, SEQUENCES):
        yield from list(value)
    elif kind is types.FunctionType:
        yield from _behind_function(value)
    elif kind is types.MethodType:
        yield value.__self__
        yield value.__func__
    elif kind is types.BuiltinMethodType:
        yield value.__self__
    elif kind is types.CellType:
        yield from contents(value)
    elif kind is functools.partial:
        yield value.func
        yield from value.args
        yield from value.keywords.values()
    elif kind in WEAK:
        yield target_of(value)
    if is_instance(value):
        for _, each in attributes_of(value):
            yield each


def all_below(
    value: Any, most: int = MOST_OF_MODULE, into_modules: bool = True, ends: Container[int] = ()
) -> Iterator[Any]:
    """A value and the objects that it refers to, but not more than `most`. Those whose `id()` is in `ends` are not
    followed, and modules only if it goes `into_modules`."""
    stack, seen = [value], {id(value): value}
    while stack:
        each = stack.pop()
        yield each
        if id(each) in ends or (isinstance(each, nn.Module) and not into_modules):
            continue
        for child in below(each):
            if len(seen) >= most:
                break
            if type(child) not in _ATOMS and id(child) not in seen:
                seen[id(child)] = child
                stack.append(child)


def tensors_below(value: Any, into: list[torch.Tensor], most: int = MOST) -> bool:
    """Adds the tensors that a value is or refers to, other than those of modules, to a list. Returns whether all
    objects were examined, which are at most `most`."""
    found = list(all_below(value, most + 1, into_modules=False))
    into += [each for each in found if isinstance(each, torch.Tensor)]
    return len(found) <= most


def leads_to(value: Any, parts: Container[int]) -> bool:
    """Whether a value is one of some objects, given by `id()`, or refers to one."""
    return any(id(each) in parts for each in all_below(value, sys.maxsize, ends=parts))


def is_atom(value: Any) -> bool:
    """Whether a value refers to no other objects."""
    return type(value) in _ATOMS


def is_instance(value: Any) -> bool:
    """Whether a value is an instance of an ordinary Python class, or of a container class made from one."""
    kind = type(value)
    if kind in WEAK:
        return False
    if isinstance(value, nn.Module):
        # Objects of TorchScript have no attributes of Python.
        return not kind.__module__.startswith("torch.jit.")
    if kind is types.SimpleNamespace:
        return True
    if not kind.__flags__ & _HEAP_TYPE or isinstance(value, (torch.Tensor, type)):
        return False
    name = kind.__module__
    return not any(name == each or name.startswith(f"{each}.") for each in _CLOSED)


def attributes_of(value: Any) -> list[tuple[str, Any]]:
    """The attributes of an instance: those in its `__dict__`, and its slots that are set."""
    attributes = getattr(value, "__dict__", None)
    found = list(attributes.items()) if isinstance(attributes, dict) else []
    for name in slots_of(type(value)):  # type: ignore[arg-type]
        with suppress(AttributeError):
            found.append((name, object.__getattribute__(value, name)))
    return found


def set_attribute(value: Any, name: str, new: Any) -> None:
    """Sets an attribute of an instance, without code of its class."""
    attributes = getattr(value, "__dict__", None)
    if isinstance(attributes, dict) and name in attributes:
        attributes[name] = new
    else:
        object.__setattr__(value, name, new)


@functools.lru_cache(maxsize=1024)
def slots_of(kind: type) -> tuple[str, ...]:
    """The names of the slots of a class."""
    members = [(name, member) for cls in kind.__mro__ for name, member in vars(cls).items()]
    return tuple(
        name for name, member in members if isinstance(member, types.MemberDescriptorType) and name != "__dict__"
    )


def target_of(weak: Any) -> Any:
    """The target of a weak reference, or the object that its target method is bound to; None if that was freed."""
    if type(weak) is weakref.WeakMethod:
        return getattr(weak(), "__self__", None)
    if type(weak) is weakref.ReferenceType:
        return weak()
    try:
        return weak.__init__.__self__
    except ReferenceError:
        return None


def contents(cell: types.CellType) -> list[Any]:
    """The content of a closure's cell, as a list; empty while its variable has no value."""
    try:
        return [cell.cell_contents]
    except ValueError:
        return []


def _behind_function(function: types.FunctionType) -> Iterator[Any]:
    yield from function.__closure__ or ()
    yield function.__defaults__
    yield from (function.__kwdefaults__ or {}).values()
    yield from list(function.__dict__.values())
