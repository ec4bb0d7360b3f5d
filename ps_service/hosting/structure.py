"""Finds the objects behind a module's attributes that refer to its parameters and submodules."""

from __future__ import annotations

import functools
import types
import weakref
from collections import deque
from collections.abc import Container, ItemsView, Iterable, Iterator, KeysView, MutableMapping, ValuesView
from typing import Any, Final, Protocol

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

_HEAP_TYPE: Final = 1 << 9
"""The flag of classes that a class statement has made."""

_CLOSED: Final = (
    *("threading", "logging", "asyncio", "concurrent", "multiprocessing", "queue", "contextvars", "weakref"),
    *("torch._dynamo", "torch._inductor", "torch._functorch", "torch.fx", "torch.optim", "torch.jit", "torch.utils"),
    *("numpy", "ps_service", "ps_wire", "trainer_client"),
)
"""Packages whose objects are never followed, because copies of them would not work, or they belong to the process."""


class Structure:
    """The objects behind a module's attributes that refer to its parameters or submodules.

    It follows containers, bound methods, closures and defaults of functions, partials, weak references, and the
    attributes of instances of ordinary Python classes, in any combination and also in cycles. It does not follow
    classes, Python modules, generators, optimizers, and objects of the process such as threads, locks and loggers.

    Args:
        module: The module.

    Attributes:
        parameters: `id()` of the module's parameters.
        submodules: `id()` of the module and its submodules.
    """

    def __init__(self, module: nn.Module) -> None:
        self.parameters = {id(parameter) for parameter in module.parameters()}
        self.submodules = {id(child) for child in module.modules()}
        # Keeps the objects alive, so that no `id()` is used again.
        self._seen: dict[int, Any] = {}
        self._leading = self._found(module)

    def leads(self, value: Any) -> bool:
        """Whether a value is a parameter or submodule, or refers to one."""
        return id(value) in self._leading

    def is_parameter(self, value: Any) -> bool:
        return id(value) in self.parameters

    def _found(self, module: nn.Module) -> set[int]:
        """`id()` of all objects that refer to a parameter or submodule."""
        above: dict[int, list[int]] = {}
        stack: list[Any] = [module]
        self._seen[id(module)] = module
        while stack:
            value = stack.pop()
            if self.is_parameter(value):
                continue
            for child in below(value):
                if type(child) in _ATOMS:
                    continue
                above.setdefault(id(child), []).append(id(value))
                if id(child) not in self._seen:
                    self._seen[id(child)] = child
                    stack.append(child)
        leading = set(self.submodules | self.parameters)
        todo = list(leading)
        while todo:
            for parent in above.get(todo.pop(), ()):
                if parent not in leading:
                    leading.add(parent)
                    todo.append(parent)
        return leading


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
        for attributes in attributes_of(value):
            yield from list(attributes.values())


def all_below(value: Any, most: int, into_modules: bool = True, ends: Container[int] = ()) -> Iterator[Any]:
    """A value and the objects that it refers to.

    Args:
        value: Any value.
        most: Most objects to return; further ones are left out.
        into_modules: Whether to follow modules.
        ends: `id()` of objects that are not followed.
    """
    stack, seen = [value], {id(value): value}
    while stack and len(seen) < most:
        each = stack.pop()
        yield each
        if id(each) in ends or (isinstance(each, nn.Module) and not into_modules):
            continue
        for child in below(each):
            if type(child) not in _ATOMS and id(child) not in seen:
                seen[id(child)] = child
                stack.append(child)


def tensors_below(value: Any, into: list[torch.Tensor], most: int) -> bool:
    """Collects the tensors that a value is or refers to, other than those of modules.

    Args:
        value: Any value.
        into: The tensors are appended to this list.
        most: Most objects to examine.

    Returns:
        Whether all objects were examined.
    """
    stack, seen = [value], {id(value): value}
    while stack:
        each = stack.pop()
        if isinstance(each, torch.Tensor):
            into.append(each)
            continue
        for child in () if isinstance(each, nn.Module) else below(each):
            if type(child) not in _ATOMS and id(child) not in seen:
                if len(seen) >= most:
                    return False
                seen[id(child)] = child
                stack.append(child)
    return True


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


def attributes_of(value: Any) -> list[Attributes]:
    """The mappings of an instance's attributes: its `__dict__`, and its slots."""
    found: list[Attributes] = []
    attributes = getattr(value, "__dict__", None)
    if isinstance(attributes, dict):
        found.append(attributes)
    names = _slots(type(value))  # type: ignore[arg-type]
    if names:
        found.append(Slots(value, names))
    return found


class Attributes(Protocol):
    """A mapping of an instance's attributes."""

    def __contains__(self, name: object, /) -> bool: ...

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[str]: ...

    def __getitem__(self, name: str, /) -> Any: ...

    def __setitem__(self, name: str, value: Any, /) -> None: ...

    def keys(self) -> KeysView[str]: ...

    def values(self) -> ValuesView[Any]: ...

    def items(self) -> ItemsView[str, Any]: ...

    def update(self, values: Any, /) -> None: ...

    def clear(self) -> None: ...

    def pop(self, name: str, default: Any, /) -> Any: ...

    def copy(self) -> dict[str, Any]: ...


class Slots(MutableMapping[str, Any]):
    """The slots of an object as a mapping."""

    def __init__(self, holder: Any, names: Iterable[str]) -> None:
        self._holder = holder
        self._names = names

    def __getitem__(self, name: str) -> Any:
        try:
            return object.__getattribute__(self._holder, name)
        except AttributeError:
            raise KeyError(name) from None

    def __setitem__(self, name: str, value: Any) -> None:
        object.__setattr__(self._holder, name, value)

    def __delitem__(self, name: str) -> None:
        object.__delattr__(self._holder, name)

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._names if name in self)

    def __contains__(self, name: object) -> bool:
        try:
            object.__getattribute__(self._holder, str(name))
        except AttributeError:
            return False
        return True

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def copy(self) -> dict[str, Any]:
        return dict(self)


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


@functools.lru_cache(maxsize=1024)
def _slots(kind: type) -> tuple[str, ...]:
    members = [(name, member) for cls in kind.__mro__ for name, member in vars(cls).items()]
    return tuple(
        name for name, member in members if isinstance(member, types.MemberDescriptorType) and name != "__dict__"
    )


def _behind_function(function: types.FunctionType) -> Iterator[Any]:
    yield from function.__closure__ or ()
    yield function.__defaults__
    yield from (function.__kwdefaults__ or {}).values()
    yield from list(function.__dict__.values())
