"""Counterparts: copies of what leads to a module's parameters, with empty places where those stand."""

from __future__ import annotations

import functools
import types
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any, Final, NamedTuple, Protocol

from torch import nn

from ps_service.hosting.structure import (
    SEQUENCES,
    WEAK,
    Attributes,
    Structure,
    attributes_of,
    contents,
    is_instance,
    target_of,
)

# Entries of a module's __dict__ that belong to the copy alone.
_OWN = ("_parameters", "_modules", "training")
_METHODS = (types.MethodType, types.BuiltinMethodType)
_FIXED = (tuple, set, frozenset, functools.partial, *_METHODS)

Leaves = Mapping[int | None, Any]
"""What stands for each parameter, by the parameter's id."""


class Place(Protocol):
    """Something with a place that can be written to: a list, a dict, the attributes of an object, a closure's cell."""

    def __setitem__(self, key: Any, value: Any, /) -> None: ...


class Part(NamedTuple):
    """One object of a copy that has attributes.

    Attributes:
        original: The attributes of the hosted object.
        made: The attributes of its counterpart.
        own: The attributes that are the counterpart's own; all others are shared with the original.
        holder: The hosted object.
        copy: Its counterpart.
    """

    original: Attributes
    made: Attributes
    own: dict[str, Any]
    holder: Any
    copy: Any

    @property
    def key(self) -> tuple[int, bool]:
        """Tells it from other parts, in every copy of the module alike."""
        return id(self.holder), isinstance(self.original, dict)


class Computed(NamedTuple):
    """A place whose value has to be put together from leaves each time: a tuple of parameters, for example."""

    container: Place
    key: Any
    build: Callable[[Leaves], Any]


class Counterparts:
    """Copies a module's structure.

    Args:
        module: The module.

    Attributes:
        module: Its copy.
        parts: Every copied object with attributes.
        objects: Every copied object that can be told from others.
        places: Where each parameter stands, by its id: containers and keys.
        computed: Places that depend on parameters.
        registered: The `_parameters` and `_modules` of every copied submodule.
    """

    def __init__(self, module: nn.Module) -> None:
        self._structure = Structure(module)
        self._memo: dict[int, Any] = {}
        self.parts: list[Part] = []
        self.objects: list[Any] = []
        self.places: dict[int, list[tuple[Place, Any]]] = {}
        self.computed: list[Computed] = []
        self.registered: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self.module: nn.Module = self._copy(module)
        self._memo.clear()
        del self._structure

    def _copy(self, value: Any) -> Any:
        """The counterpart of a value; the value itself when it leads to nothing that must be replaced."""
        if not self._structure.leads(value):
            return value
        if id(value) in self._memo:
            return self._memo[id(value)]
        if self._is_fixed(value):
            made = assembled(value, [self._copy(item) for item in items(value)])
            self._memo.setdefault(id(value), made)
            return made
        return _COPIERS.get(type(value), _copier(value))(self, value)

    def _put(self, container: Any, key: Any, value: Any) -> None:
        """Puts the counterpart of a value somewhere, or takes down that it must be put there for each run."""
        if self._structure.is_parameter(value):
            self.places.setdefault(id(value), []).append((container, key))
            container[key] = None
        elif self._is_computed(value):
            self.computed.append(Computed(container, key, self._builder(value)))
            container[key] = None
        else:
            container[key] = self._copy(value)

    def _is_fixed(self, value: Any) -> bool:
        """Whether a value is put together at once, because its items cannot be replaced one by one."""
        if isinstance(value, dict):
            return any(type(key) is not str and self._structure.leads(key) for key in value)
        return is_fixed(value) or type(value) in WEAK

    def _is_computed(self, value: Any) -> bool:
        """Whether a value cannot be written to, and holds a parameter."""
        if not self._structure.leads(value) or not self._is_fixed(value):
            return False
        return any(self._structure.is_parameter(item) or self._is_computed(item) for item in items(value))

    def _builder(self, value: Any) -> Callable[[Leaves], Any]:
        if self._structure.is_parameter(value):
            key = id(value)
            return lambda leaves: leaves[key]
        if not self._is_computed(value):
            made = self._copy(value)
            return lambda leaves: made
        builders = [self._builder(item) for item in items(value)]
        return lambda leaves: assembled(value, [build(leaves) for build in builders])

    def _note(self, value: Any, made: Any) -> None:
        self._memo[id(value)] = made
        self.objects.append(made)

    def _copy_instance(self, value: Any) -> Any:
        made = _blank(value)
        if made is None:
            return value  # what it computes from parameters is noticed after the run
        self._note(value, made)
        self._copy_attributes(value, made)
        if id(value) in self._structure.submodules:
            self.registered.append((made._parameters, made._modules))
        return made

    def _copy_attributes(self, value: Any, made: Any) -> None:
        is_module = isinstance(value, nn.Module)
        for original, target in zip(attributes_of(value), attributes_of(made), strict=True):
            attributes = original.copy()
            own: dict[str, Any] = {}
            self.parts.append(Part(original, target, own, value, made))
            target.update(attributes)
            for name, each in attributes.items():
                if is_module and name in _OWN:
                    counterpart = self._copy(each)
                    own[name] = counterpart.copy() if counterpart is each and isinstance(each, dict) else counterpart
                elif self._structure.leads(each):
                    self._put(target, name, each)
                    own[name] = target[name]
            target.update(own)

    def _copy_items(self, value: Any) -> Any:
        made = copy(value)
        self._note(value, made)
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in list(items):
            if self._structure.leads(item):
                self._put(made, key, item)
        if is_instance(value):
            self._copy_attributes(value, made)
        return made

    def _copy_cell(self, value: types.CellType) -> types.CellType:
        made = types.CellType()
        self._note(value, made)
        for held in contents(value):
            self._put(_Attribute(made, "cell_contents"), None, held)
        return made

    def _copy_function(self, value: types.FunctionType) -> types.FunctionType:
        # Its parameter states are made before it, and filled after it: they may hold the function itself.
        parameter_states = tuple(
            types.CellType() if self._is_fresh(parameter_state) else self._copy(parameter_state)
            for parameter_state in value.__closure__ or ()
        )
        made = types.FunctionType(
            value.__code__, value.__globals__, value.__name__, value.__defaults__, parameter_states
        )
        self._note(value, made)
        made.__kwdefaults__ = value.__kwdefaults__
        made.__qualname__, made.__doc__, made.__module__ = value.__qualname__, value.__doc__, value.__module__
        made.__annotations__ = value.__annotations__
        made.__dict__.update(value.__dict__)
        for parameter_state, other in zip(value.__closure__ or (), parameter_states, strict=True):
            if self._is_fresh(parameter_state):
                self._note(parameter_state, other)
                for held in contents(parameter_state):
                    self._put(_Attribute(other, "cell_contents"), None, held)
        if self._structure.leads(value.__defaults__):
            self._put(_Attribute(made, "__defaults__"), None, value.__defaults__)
        if any(map(self._structure.leads, (value.__kwdefaults__ or {}).values())):
            made.__kwdefaults__ = dict(value.__kwdefaults__ or {})
            self._put_all(made.__kwdefaults__, value.__kwdefaults__)
        self._put_all(made.__dict__, value.__dict__)
        return made

    def _is_fresh(self, parameter_state: types.CellType) -> bool:
        return self._structure.leads(parameter_state) and id(parameter_state) not in self._memo

    def _put_all(self, target: Any, values: Any) -> None:
        for name, each in dict(values).items():
            if self._structure.leads(each):
                self._put(target, name, each)


class _Attribute:
    """A place that is one attribute of an object."""

    __slots__ = ("_holder", "_name")

    def __init__(self, holder: Any, name: str) -> None:
        self._holder = holder
        self._name = name

    def __setitem__(self, key: Any, value: Any) -> None:
        setattr(self._holder, self._name, value)


_COPIERS: Final[dict[type, Callable[[Counterparts, Any], Any]]] = {
    types.FunctionType: Counterparts._copy_function,
    types.CellType: Counterparts._copy_cell,
}


def _blank(value: Any) -> Any:
    """A new instance of a value's class, without attributes; None if copies of it would do harm, or cannot be made."""
    if not is_instance(value) or hasattr(type(value), "__del__"):
        return None
    if type(value) is types.SimpleNamespace:
        return types.SimpleNamespace()
    try:
        return object.__new__(type(value))
    except TypeError:
        return None


def is_fixed(value: Any) -> bool:
    """Whether a value is put together from its pieces at once; it is no weak reference, and no dict."""
    return isinstance(value, _FIXED)


def _copier(value: Any) -> Callable[[Counterparts, Any], Any]:
    return Counterparts._copy_items if isinstance(value, (list, dict, deque)) else Counterparts._copy_instance


def items(value: Any) -> list[Any]:
    """What such a value is made of."""
    if type(value) in WEAK:
        return [target_of(value)]
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
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
    if isinstance(value, dict):
        made = copy(value)
        made.clear()
        made.update(zip(items[: len(value)], items[len(value) :], strict=True))
        return made
    if isinstance(value, tuple):
        return type(value)(*items) if hasattr(value, "_fields") else tuple.__new__(type(value), items)
    if isinstance(value, (set, frozenset)):
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
