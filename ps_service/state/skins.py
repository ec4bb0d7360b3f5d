"""Skins: private copies of a module's structure, whose tensors are shared.

A forward runs on a skin with fresh leaves in the place of the parameters. So many trainers can run one module at
once, each pass gets its own gradients, and `train()`/`eval()` belong to the call instead of to the module.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from types import MethodType
from typing import Any, NamedTuple

import torch
from torch import nn

# Entries of a module's __dict__ that belong to the skin alone.
_OWN = ("_parameters", "_modules", "training")
# What may lead to a parameter or submodule.
_LEADING = (nn.Module, nn.Parameter, MethodType, list, tuple, dict)
_ABSENT = object()


class Part(NamedTuple):
    """One module of a skin.

    Attributes:
        original: The hosted module.
        made: Its counterpart in the skin.
        own: The attributes that are the counterpart's own; all others are shared with the original.
    """

    original: nn.Module
    made: nn.Module
    own: dict[str, Any]


class Skin:
    """A copy of a module's structure.

    Args:
        module: The module to copy. Its submodules are copied too, and so are the lists, tuples, dicts and bound methods
            among its attributes that lead to a parameter or submodule of it (torch's recurrent layers keep such a list,
            hooks are often such methods); everything else is shared with the original.
        training: The mode the copy is in.
    """

    def __init__(self, module: nn.Module, training: bool) -> None:
        self._parts: list[Part] = []
        # Where each parameter stands: containers and keys.
        self._places: dict[int, list[tuple[Any, Any]]] = {}
        self._parameters = {id(parameter) for parameter in module.parameters()}
        self._submodules = {id(child) for child in module.modules()}
        self._memo: dict[int, Any] = {}
        self._given: list[dict[str, Any]] = []
        self.module: nn.Module = self._copy_module(module)
        self._memo.clear()
        # What is of no use to any other run: the leaves, and this very copy.
        self._private = {id(made) for _, made, _ in self._parts}
        self._leaves: set[int] = set()
        copied = [made.__dict__.copy() for _, made, _ in self._parts]
        self.module.train(training)
        for (_, made, own), before in zip(self._parts, copied, strict=True):
            # What a train() of the module's own has set belongs to the mode.
            own.update({key: value for key, value in made.__dict__.items() if before.get(key, _ABSENT) is not value})

    def dress(self, parameters: Sequence[nn.Parameter], leaves: Sequence[torch.Tensor]) -> None:
        """Puts leaves in the place of parameters, and takes over what changed in the original's plain attributes."""
        self._leaves = set(map(id, leaves))
        for original, made, own in self._parts:
            given = original.__dict__.copy()
            self._given.append(given)
            made.__dict__.update(given)
            made.__dict__.update(own)
        for parameter, leaf in zip(parameters, leaves, strict=True):
            for container, key in self._places[id(parameter)]:
                container[key] = leaf

    def undress(self) -> None:
        """Lets go of the leaves, and hands plain attributes that the run has set or deleted on to the original.

        Except what only this run can use: tensors with a history, and what leads to a leaf or to a part of the skin.
        """
        for (original, made, own), given in zip(self._parts, self._given, strict=True):
            attributes = made.__dict__
            for name, value in attributes.items():
                # What the run has not set itself, others may have set meanwhile.
                if given.get(name, _ABSENT) is not value and name not in own and not self._is_private(value):
                    original.__dict__[name] = value
            for name in given.keys() - attributes.keys():
                original.__dict__.pop(name, None)
            # What belonged to this run alone goes; hooks that run on the way back still find everything else.
            attributes.clear()
            attributes.update(original.__dict__)
            attributes.update(own)
        self._given.clear()
        for places in self._places.values():
            for container, key in places:
                container[key] = None

    def _is_private(self, value: Any) -> bool:
        if isinstance(value, MethodType):
            value = value.__self__
        if isinstance(value, (list, tuple, dict)):
            return any(map(self._is_private, value.values() if isinstance(value, dict) else value))
        has_history = isinstance(value, torch.Tensor) and value.requires_grad
        return has_history or id(value) in self._leaves or id(value) in self._private

    def _copy(self, value: Any) -> Any:
        """The skin's counterpart of a value; the value itself when it holds nothing that must be replaced."""
        if isinstance(value, nn.Module):
            return self._copy_module(value) if id(value) in self._submodules else value
        if isinstance(value, MethodType):
            instance = self._copy(value.__self__) if isinstance(value.__self__, nn.Module) else value.__self__
            return value if instance is value.__self__ else MethodType(value.__func__, instance)
        if isinstance(value, (list, tuple, dict)):
            if id(value) not in self._memo:
                self._memo[id(value)] = value  # for those that contain themselves
                self._memo[id(value)] = self._copy_container(value)
            return self._memo[id(value)]
        return value

    def _copy_container(self, value: Any) -> Any:
        if not any(isinstance(item, _LEADING) for item in (value.values() if isinstance(value, dict) else value)):
            return value
        items = list(value.items() if isinstance(value, dict) else enumerate(value))
        copies = [(key, self._copy(item)) for key, item in items]
        places = [(key, id(item)) for key, item in items if id(item) in self._parameters]
        if not places and all(one is other for (_, one), (_, other) in zip(items, copies, strict=True)):
            return value
        made = _rebuilt(value, copies, writable=bool(places))
        for key, parameter in places:
            self._places.setdefault(parameter, []).append((made, key))
        return made

    def _copy_module(self, module: nn.Module) -> nn.Module:
        known: nn.Module | None = self._memo.get(id(module))
        if known is not None:
            return known
        made = module.__class__.__new__(module.__class__)
        self._memo[id(module)] = made
        attributes = module.__dict__.copy()
        own: dict[str, Any] = {}
        self._parts.append(Part(module, made, own))
        made.__dict__.update(attributes)
        for name, value in attributes.items():
            counterpart = self._copy(value)
            if name in _OWN or counterpart is not value:
                own[name] = counterpart.copy() if counterpart is value and isinstance(value, dict) else counterpart
        made.__dict__.update(own)
        return made


class SkinPool:
    """Keeps a few skins of one module, because making one costs ten times as much as dressing it."""

    def __init__(self, module: nn.Module, keep: int = 4) -> None:
        self._module = module
        self._keep = keep
        self._free: dict[bool, list[Skin]] = {True: [], False: []}

    @contextmanager
    def lend(
        self, training: bool, parameters: Sequence[nn.Parameter], leaves: Sequence[torch.Tensor]
    ) -> Iterator[nn.Module]:
        """Lends a dressed skin. Safe to call from several threads."""
        free = self._free[training]
        try:
            skin = free.pop()
        except IndexError:
            skin = Skin(self._module, training)
        skin.dress(parameters, leaves)
        try:
            yield skin.module
        finally:
            skin.undress()
            if len(free) < self._keep:
                free.append(skin)


def _rebuilt(value: Any, items: Sequence[tuple[Any, Any]], writable: bool) -> Any:
    """A container like another, with other items. One that must be written to is a list if it was a tuple."""
    if isinstance(value, tuple):
        values = [item for _, item in items]
        if writable:
            return values
        return type(value)(*values) if hasattr(value, "_fields") else tuple(values)
    made = copy(value)
    for key, item in items:
        made[key] = item
    return made
