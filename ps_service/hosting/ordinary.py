"""Tells whether a module is ordinary, so that its calls may run on views."""

from __future__ import annotations

import functools
import types
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from ps_service.hosting.structure import all_below, attributes_of, contents, is_instance, leads_to, slots_of
from ps_wire.decorators import takes_turns

if TYPE_CHECKING:
    from collections.abc import Iterator

RECURRENT: Final = ("_flat_weights", "_flat_weight_refs")
"""Attributes in which recurrent layers of torch keep lists of their parameters."""

_SMALLEST: Final = 1 << 20
"""Smaller numbers are no `id()`."""

_TABLES: Final = ("WeakKeyDictionary.", "WeakSet.")
"""Prefixes of the qualified names of the functions that tables with weak keys call when a key is freed."""

_OTHERS: Final = ("torch.jit.", "torch._dynamo.", "torch.fx.", "torch.ao.", "torch.distributed.")
"""Packages of torch whose modules are no plain Python."""

_CACHED: Final = type(functools.lru_cache(lambda: None))


def is_ordinary(module: nn.Module) -> bool:
    """Whether nothing but the dicts of a module and its submodules refers to its parameters and submodules."""
    submodules, parameters = list(module.modules()), list(module.parameters())
    if not (all(map(_is_plain_parameter, parameters)) and all(map(_is_plain_module, submodules))):
        return False
    parts = {*map(id, submodules), *map(id, parameters)}
    if leads_to([value for each in submodules for value in _attributes(each)], parts):
        return False
    # It may have stored values under its own identity, or under that of a part.
    if any(map(_is_in_weak_table, (*submodules, *parameters))):
        return False
    return not any(number in parts for each in all_below(module) for number in _numbers(each))


def _is_plain_parameter(parameter: nn.Parameter) -> bool:
    """Whether a parameter has no hooks and no attributes of its own."""
    if type(parameter) is not nn.Parameter or parameter.layout is not torch.strided:
        return False
    return not (parameter.__dict__ or parameter._backward_hooks or parameter._post_accumulate_grad_hooks)


def _is_plain_module(module: nn.Module) -> bool:
    """Whether a module is plain Python without hooks, and its classes cache no results of methods."""
    if takes_turns(type(module)):
        return False
    if type(module).__module__.startswith(_OTHERS) or slots_of(type(module)):  # type: ignore[arg-type]
        return False
    if any(value for name, value in module.__dict__.items() if name.endswith("_hooks")):
        return False
    own = [each for each in type(module).__mro__ if not each.__module__.startswith("torch.")]
    return not any(isinstance(value, _CACHED) for each in own for value in vars(each).values())


def _attributes(module: nn.Module) -> Iterator[Any]:
    """The attributes of a module besides its parameters and submodules."""
    known = ("_parameters", "_modules", *(RECURRENT if isinstance(module, nn.RNNBase) else ()))
    return (value for name, value in module.__dict__.items() if name not in known)


def _is_in_weak_table(value: Any) -> bool:
    """Whether a value is a key of a table with weak keys."""
    if not weakref.getweakrefcount(value):
        return False
    callbacks = [getattr(each, "__callback__", None) for each in weakref.getweakrefs(value)]
    return any(getattr(each, "__qualname__", "").startswith(_TABLES) for each in callbacks)


def _numbers(value: Any) -> Iterator[int]:
    """The large numbers in a container or among the attributes of an object."""
    found: list[Any] = []
    if isinstance(value, dict):
        found += [*value, *value.values()]
    elif isinstance(value, (list, tuple, set, frozenset, deque)):
        found += value
    elif isinstance(value, types.CellType):
        found += contents(value)
    if is_instance(value) and not type(value).__module__.startswith("torch."):  # its compiled modules know their own
        found += [each for _, each in attributes_of(value)]
    return (each for each in found if type(each) is int and each >= _SMALLEST)
