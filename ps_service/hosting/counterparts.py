"""Copies the objects that refer to a module's parameters, and lists where the copies hold parameters."""

from __future__ import annotations

import types
from collections.abc import Callable, Collection
from copy import copy
from typing import Any, Final, NamedTuple, Protocol

from torch import nn

from ps_service.hosting.containers import SharedContainer, is_container
from ps_service.hosting.parts import Part
from ps_service.hosting.replacing import assembled, is_fixed, items
from ps_service.hosting.structure import (
    WEAK,
    Structure,
    attributes_of,
    contents,
    is_instance,
)

# Entries of a module's __dict__ that each copy has for itself.
_OWN = ("_parameters", "_modules", "training")


class Place(Protocol):
    """An object with items that can be set: a list, a dict, the attributes of an object, a closure's cell."""

    def __setitem__(self, key: Any, value: Any, /) -> None: ...


class Computed(NamedTuple):
    """An item whose value is assembled from leaves for each run, such as a tuple of parameters.

    Attributes:
        container: The container of the item.
        key: Its key in the container.
        original: Its value in the original.
    """

    container: Place
    key: Any
    original: Any


class Counterparts:
    """Copies a module's structure.

    Args:
        module: The module.

    Attributes:
        module: Its copy.
        parts: Every copied object with attributes.
        objects: Every copied object that has an identity.
        originals: Their originals, in the same order.
        containers: Every copied container and closure cell, except those in which torch registers parameters and
            submodules.
        places: By `id()` of each parameter: the containers and keys that hold it.
        computed: Items whose values depend on parameters.
        registered: The `_parameters` and `_modules` of every copied submodule.
    """

    def __init__(self, module: nn.Module) -> None:
        self._structure = Structure(module)
        self._memo: dict[int, Any] = {}
        self.parts: list[Part] = []
        self.objects: list[Any] = []
        self.originals: list[Any] = []
        self.containers: list[SharedContainer] = []
        self.places: dict[int, list[tuple[Place, Any]]] = {}
        self.computed: list[Computed] = []
        self.registered: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self.module: nn.Module = self._copy(module)
        self._memo.clear()
        del self._structure

    def _copy(self, value: Any) -> Any:
        """The counterpart of a value; the value itself if it refers to no parameter or submodule."""
        if not self._structure.leads(value):
            return value
        if id(value) in self._memo:
            return self._memo[id(value)]
        if self._is_fixed(value):
            made = assembled(value, [self._copy(item) for item in items(value)])
            return self._memo.setdefault(id(value), made)
        return _COPIERS.get(type(value), _copier(value))(self, value)

    def _put(self, container: Any, key: Any, value: Any) -> None:
        """Sets an item to the counterpart of a value, or notes that it has to be set for each run."""
        if self._structure.is_parameter(value):
            self.places.setdefault(id(value), []).append((container, key))
            container[key] = None
        elif self._is_computed(value):
            for item in items(value):
                self._copy_all(item)
            self.computed.append(Computed(container, key, value))
            container[key] = None
        else:
            container[key] = self._copy(value)

    def _copy_all(self, value: Any) -> None:
        """Copies the mutable parts of a value that is assembled for each run."""
        if self._structure.is_parameter(value):
            return
        if self._is_computed(value):
            for item in items(value):
                self._copy_all(item)
        else:
            self._copy(value)

    def _is_fixed(self, value: Any) -> bool:
        """Whether a value has to be assembled at once, because its items cannot be set."""
        return is_fixed(value) or type(value) in WEAK

    def _is_computed(self, value: Any) -> bool:
        """Whether a value is immutable and holds a parameter."""
        if not self._structure.leads(value) or not self._is_fixed(value):
            return False
        return any(map(self._depends, items(value)))

    def _depends(self, value: Any) -> bool:
        """Whether the counterpart of a value differs from run to run."""
        return self._structure.is_parameter(value) or self._is_computed(value)

    def _note(self, value: Any, made: Any) -> None:
        self._memo[id(value)] = made
        self.objects.append(made)
        self.originals.append(value)

    def _copy_instance(self, value: Any) -> Any:
        made = _blank(value)
        if made is None:
            return value  # a use of parameters through it is noticed after the run
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
            leading: list[str] = []
            self.parts.append(Part(original, target, own, value, made, leading))
            target.update(attributes)
            for name, each in attributes.items():
                if is_module and name in _OWN:
                    own[name] = self._copy_registered(each) if isinstance(each, dict) else each
                elif self._structure.leads(each):
                    self._put(target, name, each)
                    own[name] = target[name]
                    leading.append(name)
            target.update(own)

    def _copy_registered(self, value: dict[str, Any]) -> Any:
        """The counterpart of a dict in which torch registers parameters or submodules."""
        if id(value) in self._memo:
            return self._memo[id(value)]
        made = value.copy()
        if self._structure.leads(value):
            self._note(value, made)
            self._put_all(made, value)
        return made

    def _copy_items(self, value: Any) -> Any:
        made = copy(value)
        self._note(value, made)
        keys: Collection[Any] = value if isinstance(value, (dict, set)) else ()
        is_refilled = any(map(self._depends, keys))
        self.containers.append(SharedContainer(value, made, is_refilled))
        if is_refilled:
            for each in (*value, *value.values()) if isinstance(value, dict) else value:
                self._copy_all(each)
            made.clear()
        elif isinstance(value, set):
            made.clear()
            made.update(map(self._copy, list(value)))
        elif isinstance(value, dict) and any(map(self._structure.leads, value)):
            made.clear()
            for key, item in list(value.items()):
                self._put(made, self._copy(key), item)
        else:
            for key, item in list(value.items() if isinstance(value, dict) else enumerate(value)):
                if self._structure.leads(item):
                    self._put(made, key, item)
        if is_instance(value):
            self._copy_attributes(value, made)
        return made

    def _copy_cell(self, value: types.CellType) -> types.CellType:
        made = types.CellType()
        self._note(value, made)
        self.containers.append(SharedContainer(value, made, is_refilled=False))
        for held in contents(value):
            self._put(_Attribute(made, "cell_contents"), None, held)
        return made

    def _copy_function(self, value: types.FunctionType) -> types.FunctionType:
        # Its cells are made before it and filled after it, because they may hold the function itself.
        cells = tuple(
            types.CellType() if self._is_fresh(cell) else self._copy(cell) for cell in value.__closure__ or ()
        )
        made = types.FunctionType(value.__code__, value.__globals__, value.__name__, value.__defaults__, cells)
        self._note(value, made)
        made.__kwdefaults__ = value.__kwdefaults__
        made.__qualname__, made.__doc__, made.__module__ = value.__qualname__, value.__doc__, value.__module__
        made.__annotations__ = value.__annotations__
        made.__dict__.update(value.__dict__)
        for cell, other in zip(value.__closure__ or (), cells, strict=True):
            if self._is_fresh(cell):
                self._note(cell, other)
                self.containers.append(SharedContainer(cell, other, is_refilled=False))
                for held in contents(cell):
                    self._put(_Attribute(other, "cell_contents"), None, held)
        if self._structure.leads(value.__defaults__):
            self._put(_Attribute(made, "__defaults__"), None, value.__defaults__)
        if any(map(self._structure.leads, (value.__kwdefaults__ or {}).values())):
            made.__kwdefaults__ = dict(value.__kwdefaults__ or {})
            self._put_all(made.__kwdefaults__, value.__kwdefaults__)
        self.containers.append(SharedContainer(value.__dict__, made.__dict__, is_refilled=False))
        self._put_all(made.__dict__, value.__dict__)
        return made

    def _is_fresh(self, cell: types.CellType) -> bool:
        return self._structure.leads(cell) and id(cell) not in self._memo

    def _put_all(self, target: Any, values: Any) -> None:
        for name, each in dict(values).items():
            if self._structure.leads(each):
                self._put(target, name, each)


class _Attribute:
    """One attribute of an object, as a `Place`."""

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
    """A new instance of a value's class, without attributes; None if it cannot be copied safely."""
    if not is_instance(value) or hasattr(type(value), "__del__"):
        return None
    if type(value) is types.SimpleNamespace:
        return types.SimpleNamespace()
    try:
        return object.__new__(type(value))
    except TypeError:
        return None


def _copier(value: Any) -> Callable[[Counterparts, Any], Any]:
    return Counterparts._copy_items if is_container(value) else Counterparts._copy_instance
