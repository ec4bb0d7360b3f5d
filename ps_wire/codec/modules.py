"""Modules by value: the state travels, and the receiver makes the structure.

What would change numbers without an error if it differed is sent too, and compared or set: the classes of submodules,
which names share a tensor, dtypes, and buffers that are not in the state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_map_only

from ps_wire.numerics.random import Seeded


def encoded(module: nn.Module) -> dict[str, Any]:
    """The values of a module, its modes, which parameters are frozen, and what `make` has to give it. Each tensor is an
    object of its own, so that it is sent with the module."""
    state = tree_map_only(torch.Tensor, torch.Tensor.detach, dict(module.state_dict()))
    parameters = module.named_parameters(remove_duplicate=False)
    parts = list(module.named_modules(remove_duplicate=False))
    return {
        "state": state,
        "others": {name: buffer.detach() for name, buffer in _buffers(module) if name not in state},
        "frozen": [name for name, parameter in parameters if not parameter.requires_grad],
        "resting": [name for name, part in parts if not part.training],
        "classes": {name: type(part).__name__ for name, part in parts},
        "shared": _shared(module),
    }


def decoder(cls: type, make: Callable[[], nn.Module]) -> Callable[[Any], nn.Module]:
    """A function that makes a module of a class from what `encoded` gave; `make` makes one with the same structure."""

    def decode(sent: Any) -> nn.Module:
        # The initial values are overwritten: drawing them must not change what the program draws.
        with Seeded(0):
            module = make()
        if type(module) is not cls:
            raise TypeError(f"make() made a {type(module).__name__}")
        _compare_classes(module, sent["classes"])
        _cast(module, sent["state"])
        module.load_state_dict(sent["state"])
        _set_others(module, sent["others"], sent["state"])
        if (shared := _shared(module)) != sent["shared"]:
            raise TypeError(f"make() gave tensors that are shared by {shared}, and not by {sent['shared']}")
        frozen, resting = set(sent["frozen"]), set(sent["resting"])
        for name, parameter in module.named_parameters(remove_duplicate=False):
            parameter.requires_grad_(name not in frozen)
        for name, part in module.named_modules(remove_duplicate=False):
            part.training = name not in resting
        # Where the values have arrived.
        return module.to(next((each.device for each in sent["state"].values() if isinstance(each, torch.Tensor)), None))

    return decode


def _compare_classes(module: nn.Module, classes: dict[str, str]) -> None:
    """Checks that the submodules are of the classes that were sent; lazy ones get theirs in their first call."""
    made = dict(module.named_modules(remove_duplicate=False))
    for name in [*classes, *(name for name in made if name not in classes)]:
        part, wanted = made.get(name), classes.get(name)
        if not isinstance(part, LazyModuleMixin) and (part is None or type(part).__name__ != wanted):
            found = "nothing" if part is None else f"a {type(part).__name__}"
            raise TypeError(f"make() gave {found} as {name!r}, and what was sent has {wanted or 'nothing'} there")


def _cast(module: nn.Module, state: dict[str, Any]) -> None:
    """Gives parameters and buffers the dtypes of the values that they get."""
    for name, tensor in chain(module.named_parameters(remove_duplicate=False), _buffers(module)):
        value = state.get(name)
        if isinstance(value, torch.Tensor) and value.dtype != tensor.dtype and not is_lazy(tensor):
            tensor.data = tensor.data.to(value.dtype)


def _set_others(module: nn.Module, others: dict[str, torch.Tensor], state: dict[str, Any]) -> None:
    """Sets the buffers that are not in the state; one that was not sent becomes None."""
    for name, buffer in list(_buffers(module)):
        value = others.get(name)
        if value is not None:
            buffer.data = value
        elif name not in state:
            _set(module, name, None)
    made = {name for name, _ in _buffers(module)}
    for name in others.keys() - made:
        _set(module, name, others[name])


def _set(module: nn.Module, name: str, value: torch.Tensor | None) -> None:
    path, _, leaf = name.rpartition(".")
    part = module.get_submodule(path)
    if leaf not in dict(part._buffers):
        raise TypeError(f"make() gave no buffer {name!r}")
    setattr(part, leaf, value)


def _shared(module: nn.Module) -> list[list[str]]:
    """The names of parameters and buffers that are one tensor, in groups of at least two."""
    names: dict[int, list[str]] = {}
    for name, tensor in chain(module.named_parameters(remove_duplicate=False), _buffers(module)):
        names.setdefault(id(tensor), []).append(name)
    return sorted(sorted(group) for group in names.values() if len(group) > 1)


def _buffers(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    return module.named_buffers(remove_duplicate=False)
