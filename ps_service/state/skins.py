"""Skins: private copies of a module's structure, whose tensors are shared.

A forward runs on a skin with fresh leaves in the place of the parameters. So many trainers can run one module at
once, each pass gets its own gradients, and `train()`/`eval()` belong to the call instead of to the module.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

# Entries of a module's __dict__ that belong to the skin alone.
_OWN = frozenset({"_parameters", "_modules", "training"})


class Skin:
    """A copy of a module's structure.

    Args:
        module: The module to copy. Its submodules are copied too, and so are the lists, tuples and dicts among its
            attributes that hold parameters or submodules of it (torch's recurrent layers keep such a list); everything
            else is shared with the original.
        training: The mode the copy is in.
    """

    def __init__(self, module: nn.Module, training: bool) -> None:
        self._pairs: list[tuple[nn.Module, nn.Module]] = []
        # Where each parameter stands: containers and keys.
        self._places: dict[int, list[tuple[Any, Any]]] = {}
        self._copied: dict[int, set[str]] = {}
        parameters = {id(parameter) for parameter in module.parameters()}
        self._known = parameters | {id(child) for child in module.modules()}
        self._parameters = parameters
        self._memo: dict[int, Any] = {}
        self.module: nn.Module = self._copy_module(module)
        self.module.train(training)

    def dress(self, parameters: Sequence[nn.Parameter], leaves: Sequence[torch.Tensor]) -> None:
        """Puts leaves in the place of parameters, and takes over what changed in the original's plain attributes."""
        for original, copy in self._pairs:
            shared = copy.__dict__
            kept = {name: shared[name] for name in (*_OWN, *self._copied[id(copy)]) if name in shared}
            shared.update(original.__dict__)
            shared.update(kept)
        for parameter, leaf in zip(parameters, leaves, strict=True):
            for container, key in self._places[id(parameter)]:
                container[key] = leaf

    def undress(self) -> None:
        """Lets go of the leaves, and hands plain attributes that the run has set back to the original."""
        for original, copy in self._pairs:
            own = original.__dict__
            copied = self._copied[id(copy)]
            for name, value in copy.__dict__.items():
                if own.get(name) is value or name in _OWN or name in copied or _has_history(value):
                    continue
                own[name] = value
        for places in self._places.values():
            for container, key in places:
                container[key] = None

    def _copy(self, value: Any) -> Any:
        """The skin's counterpart of a value; the value itself when it holds nothing that must be replaced."""
        if isinstance(value, nn.Module) and id(value) in self._known:
            return self._copy_module(value)
        if isinstance(value, (list, tuple)) and self._holds_known(value):
            copy = [self._copy(item) for item in value]
            self._note_places(copy, enumerate(value))
            return copy
        if isinstance(value, dict) and self._holds_known(value.values()):
            return self._copy_dict(value)
        return value

    def _copy_dict(self, value: dict[Any, Any]) -> dict[Any, Any]:
        copy = {key: self._copy(item) for key, item in value.items()}
        self._note_places(copy, value.items())
        return copy

    def _copy_module(self, module: nn.Module) -> nn.Module:
        known: nn.Module | None = self._memo.get(id(module))
        if known is not None:
            return known
        copy = module.__class__.__new__(module.__class__)
        self._memo[id(module)] = copy
        self._pairs.append((module, copy))
        copied = self._copied[id(copy)] = set()
        attributes = dict(module.__dict__)
        copy.__dict__.update(attributes)
        for name in ("_parameters", "_modules"):
            copy.__dict__[name] = self._copy_dict(attributes[name])
        for name, value in attributes.items():
            if name in _OWN:
                continue
            counterpart = self._copy(value)
            if counterpart is not value:
                copied.add(name)
                copy.__dict__[name] = counterpart
        return copy

    def _holds_known(self, values: Any) -> bool:
        return any(id(value) in self._known for value in values)

    def _note_places(self, container: Any, items: Any) -> None:
        for key, item in items:
            if id(item) in self._parameters:
                self._places.setdefault(id(item), []).append((container, key))


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


def _has_history(value: Any) -> bool:
    # A tensor that a hook computed for this pass alone, such as the weight of a parametrized layer.
    return isinstance(value, torch.Tensor) and value.requires_grad
