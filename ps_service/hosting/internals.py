"""The tensors of a module besides its parameters."""

from __future__ import annotations

import types
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import chain
from operator import is_not, itemgetter, methodcaller
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from ps_service.hosting.histories import ending, has_open_history
from ps_service.hosting.running_statistics import StatisticsLock, with_statistics
from ps_service.hosting.structure import MOST, all_below, is_atom, tensors_below

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

    from torch import nn

    from ps_service.hosting.replacing import Replacing

_TORCHS: Final = frozenset(vars(torch.nn.Module()))
"""Attributes of every module, which hold no tensors that its calls return, besides the buffers."""

# Most modules have no buffers, and these look at all of them in C.
_buffers_of: Final = itemgetter("_buffers")
_values: Final = methodcaller("values")
_is_there: Final = partial(is_not, None)


class Found(NamedTuple):
    """The tensors that a module keeps, and whether these are all: very large attributes are not searched."""

    tensors: list[torch.Tensor]
    is_all: bool


class Internals:
    """Finds the tensors of a module besides its parameters, and has the locks of its running statistics, by `id()` of
    the layer. `ends_histories` tells whether a call has stored a tensor with a history, and `has_references` whether
    the module keeps a reference to another object, of this owner or another, or a table."""

    def __init__(self, module: nn.Module) -> None:
        self.ends_histories = False
        self._module = module
        self._parameters = frozenset(map(id, module.parameters()))
        self.norm_locks = {id(layer): StatisticsLock() for layer in with_statistics(module)}
        self.learn()

    def learn(self) -> None:
        """Notes which attributes may hold tensors. Called again when calls have set attributes."""
        attributes = [each.__dict__ for each in self._module.modules()]
        self._places = [(held, name) for held in attributes for name, value in held.items() if _may_hold(name, value)]
        self._with_buffers = [held for held in attributes if "_buffers" in held]
        kept = chain.from_iterable(all_below(held[name], MOST, into_modules=False) for held, name in self._places)
        self.has_references = any(
            hasattr(type(each), "local_value") or hasattr(type(each), "__ps_table__") for each in kept
        )

    def end_histories(self, known: Container[int]) -> None:
        """Ends the histories of tensors that a run has stored in objects that all runs share, except those that are
        `known`, by `id()`, to have had one before the run."""
        if not any(has_open_history(tensor) and id(tensor) not in known for tensor in self.found().tensors):
            return
        replacing = ending(known)
        for attributes, name in (*((held, "_buffers") for held in self._with_buffers), *self._places):
            value = attributes.get(name)
            made = self.without_history(value, known, replacing)
            if made is not value:
                attributes[name] = made

    def without_history(self, value: Any, known: Container[int] = (), replacing: Replacing | None = None) -> Any:
        """A value with the histories of its tensors ended, for later runs, as in `end_histories`."""
        tensors: list[torch.Tensor] = []
        tensors_below(value, tensors)
        if not any(has_open_history(tensor) and id(tensor) not in known for tensor in tensors):
            return value
        self.ends_histories = True
        return (replacing or ending()).of(value)

    def found(self) -> Found:
        """The tensors that the module keeps now."""
        tensors = self.buffers()
        is_all = True
        for attributes, name in self._places:
            value = attributes.get(name)
            if isinstance(value, torch.Tensor):
                tensors.append(value)
            elif not isinstance(value, (dict, list)) or value:
                is_all &= tensors_below(value, tensors)
        if not self._parameters.isdisjoint(map(id, tensors)):
            tensors = [each for each in tensors if id(each) not in self._parameters]
        return Found(tensors, is_all)

    def buffers(self) -> list[torch.Tensor]:
        """All buffers of the module, also those of normalization layers."""
        return list(filter(_is_there, chain.from_iterable(map(_values, map(_buffers_of, self._with_buffers)))))

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Keeps normalization layers from changing their running statistics during a block."""
        with ExitStack() as stack:
            for lock in self.norm_locks.values():
                stack.enter_context(lock)
            yield


def _may_hold(name: str, value: Any) -> bool:
    """Whether a value may hold tensors, now or later. Functions of torch, such as activations, hold none."""
    if name in _TORCHS or is_atom(value):
        return False
    if isinstance(value, types.FunctionType) and value.__closure__ is None:
        return not (value.__module__ or "").startswith("torch.")
    if isinstance(value, types.BuiltinFunctionType):
        return not isinstance(value.__self__, types.ModuleType)
    return not (isinstance(value, tuple) and all(map(is_atom, value)))
