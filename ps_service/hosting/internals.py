"""The tensors of a module besides its parameters."""

from __future__ import annotations

from operator import methodcaller
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from ps_service.hosting.histories import Ending, has_open_history
from ps_service.hosting.running_statistics import StatisticsLock, with_statistics
from ps_service.hosting.structure import is_atom, tensors_below

if TYPE_CHECKING:
    from collections.abc import Container, Sequence
    from types import TracebackType

    from torch import nn

MOST: Final = 1000
"""Most objects behind one attribute that are searched for tensors."""

_buffers_of: Final = methodcaller("get", "_buffers")

_TORCHS: Final = frozenset(vars(torch.nn.Module())) - {"_buffers"}
"""Attributes of every module, which hold no tensors that its calls return."""


class Found(NamedTuple):
    """The tensors that a module keeps.

    Attributes:
        tensors: The tensors.
        is_all: Whether these are all; very large attributes are not searched.
    """

    tensors: list[torch.Tensor]
    is_all: bool


class Internals:
    """Finds the tensors of a module besides its parameters, and has the locks of its running statistics.

    Args:
        module: The module.

    Attributes:
        ends_histories: Whether a call has stored a tensor with a history.
    """

    def __init__(self, module: nn.Module) -> None:
        self.ends_histories = False
        self._module = module
        self._parameters = frozenset(map(id, module.parameters()))
        self._norms = {id(layer): StatisticsLock() for layer in with_statistics(module)}
        self.learn()

    def learn(self) -> None:
        """Notes which attributes may hold tensors. Called again when calls have set attributes."""
        attributes = [each.__dict__ for each in self._module.modules()]
        places = [(held, name) for held in attributes for name, value in held.items() if _may_hold(name, value)]
        self._buffers = [held["_buffers"] for held in attributes if "_buffers" in held]
        self._modules = [held for held, name in places if name == "_buffers"]
        self._beside_buffers = [each for each in places if each[1] != "_buffers"]
        self._places = places

    def norm_lock(self, layer: nn.Module) -> StatisticsLock:
        """The lock of a normalization layer's running statistics."""
        return self._norms[id(layer)]

    def without_history(self, value: Any, ending: Ending) -> Any:
        """A value with the histories of its tensors ended, for later runs."""
        tensors: list[torch.Tensor] = []
        tensors_below(value, tensors, MOST)
        if not any(map(ending.is_meant, tensors)):
            return value
        self.ends_histories = True
        return ending.of(value)

    def end_histories(self, known: Container[int]) -> None:
        """Ends the histories of tensors that a run has stored in objects that all runs share.

        Args:
            known: `id()` of the tensors that had a history before the run.
        """
        if not any(has_open_history(tensor) and id(tensor) not in known for tensor in self.found().tensors):
            return
        ending = Ending(known)
        for attributes, name in self._places:
            value = attributes.get(name)
            made = self.without_history(value, ending)
            if made is not value:
                attributes[name] = made

    def found(self) -> Found:
        """The tensors that the module keeps now."""
        tensors: list[torch.Tensor] = []
        is_all = True
        # Most modules have no buffers, and `map` checks them all in C.
        places = self._places if any(map(_buffers_of, self._modules)) else self._beside_buffers
        for attributes, name in places:
            value = attributes.get(name)
            if isinstance(value, torch.Tensor):
                tensors.append(value)
            elif not isinstance(value, (dict, list)) or value:
                is_all &= tensors_below(value, tensors, MOST)
        if tensors:
            tensors = [each for each in tensors if id(each) not in self._parameters]
        return Found(tensors, is_all)

    def buffers(self) -> list[torch.Tensor]:
        """All buffers of the module, also those of normalization layers."""
        if not any(self._buffers):
            return []
        return [each for held in self._buffers for each in held.values() if each is not None]

    def quiet(self) -> Quiet:
        """Keeps normalization layers from changing their running statistics during a block."""
        return Quiet(list(self._norms.values()))


class Quiet:
    """Holds some locks inside a block; may be used for several blocks, one after the other.

    Args:
        locks: The locks.
    """

    def __init__(self, locks: Sequence[StatisticsLock]) -> None:
        self._locks = locks

    def __enter__(self) -> None:
        for lock in self._locks:
            lock.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for lock in self._locks:
            lock.__exit__(kind, error, trace)


def _may_hold(name: str, value: Any) -> bool:
    if name in _TORCHS or is_atom(value):
        return False
    return not (isinstance(value, tuple) and all(map(is_atom, value)))
