"""The tensors of a module besides its parameters, and the turns of the calls that change them."""

from __future__ import annotations

import threading
import types
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from ps_service.hosting.containers import is_container
from ps_service.hosting.histories import Ending, has_open_history
from ps_service.hosting.structure import is_atom, is_instance, tensors_below
from ps_wire.runtime.locks import ReportingLock

if TYPE_CHECKING:
    from ps_service.hosting.parts import Part
    from ps_service.hosting.replacing import Replacing
    from ps_service.parameters.locks import ParameterLocks

Code = tuple[str, bool | None]
"""The name of a method or function that runs on a module, and whether it runs in training mode; None for the module's
own mode."""

MOST: Final = 1000
"""Most objects behind one attribute that are searched for tensors."""

_buffers_of: Final = methodcaller("get", "_buffers")

_TORCHS: Final = frozenset(vars(nn.Module())) - {"_buffers"}
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
    """Finds the tensors of a module, and lets calls that change them in place take turns.

    A method that has run before and has changed no tensor runs concurrently with others. A method that has not run yet
    runs alone; so do all methods once a call has changed a tensor. Running statistics of normalization layers do not
    count: each of those layers takes turns for its own forward.

    Args:
        parameters: `id()` of the module's parameters.

    Attributes:
        changing: Whether a call has changed a tensor in place, or concurrent calls have changed references to
            parameters.
        ends_histories: Whether a call has stored a tensor with a history.
        is_remembered: Whether other objects have kept using a copy of the module after its call.
        structure_lock: Held while references to parameters are changed or copied.
        generation: Number of changes of references to parameters.
    """

    def __init__(self, parameters: frozenset[int] = frozenset()) -> None:
        self._parameters = parameters
        self.is_remembered = False
        self.structure_lock = threading.RLock()
        self.generation = 0
        self._unsettled: set[Code] = set()
        self._lock = ReportingLock()
        self._norms: dict[int, threading.Lock] = {}
        self._places: dict[tuple[int, bool], tuple[Any, set[str]]] = {}
        # Keeps the objects alive, so that no `id()` is used again.
        self._holders: dict[int, Any] = {}
        self._learned = 0
        # The same as a list, for fast iteration.
        self._flat: list[tuple[Any, str]] = []
        self._modules: list[Any] = []
        self._beside_buffers: list[tuple[Any, str]] = []
        self._buffers: list[dict[str, torch.Tensor | None]] = []
        self._harmless: set[Code] = set()
        self.changing = False
        self.ends_histories = False

    def norm_lock(self, layer: nn.Module) -> threading.Lock:
        """The lock of a normalization layer's running statistics."""
        return self._norms.setdefault(id(layer), threading.Lock())

    def learn(self, parts: Sequence[Part], generation: int) -> None:
        """Notes which attributes of the parts of a module may hold tensors.

        Args:
            parts: The parts of a copy.
            generation: The generation in which the copy was made.
        """
        with self.structure_lock:
            self._learn(parts, generation)

    def _learn(self, parts: Sequence[Part], generation: int) -> None:
        if generation > self._learned:
            # Some known attributes may have been deleted.
            self._learned = generation
            self._places, self._buffers, self._holders = {}, [], {}
        for part in parts:
            self._holders[id(part.holder)] = part.holder
            names = {
                name
                for name, value in part.original.items()
                if (name not in part.own or name in part.leading) and _may_hold(name, value)
            }
            if isinstance(part.holder, _NormBase) and id(part.holder) in self._norms:
                names.discard("_buffers")
            if part.key not in self._places and isinstance(part.holder, nn.Module) and isinstance(part.original, dict):
                self._buffers.append(part.holder._buffers)
            self._places.setdefault(part.key, (part.original, set()))[1].update(names)
        self._flatten()

    def note_set(self, part: Part, name: str, value: Any) -> None:
        """Notes an attribute that a run has set, which all later runs share."""
        names = self._places.setdefault(part.key, (part.original, set()))[1]
        if name not in names and _may_hold(name, value):
            names.add(name)
            self._harmless.clear()
            self._flatten()

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
        # A concurrent run has changed the same objects: from now on they take turns.
        self.changing = True
        ending = Ending(known)
        for attributes, name in self._flat:
            value = attributes.get(name)
            made = self.without_history(value, ending)
            if made is not value:
                attributes[name] = made

    def replace(self, replacing: Replacing) -> None:
        """Replaces objects in the objects that all runs share."""
        for attributes, name in self._flat:
            value = attributes.get(name)
            if (made := replacing.of(value)) is not value:
                attributes[name] = made

    def found(self) -> Found:
        """The tensors that the module keeps now."""
        tensors: list[torch.Tensor] = []
        is_all = True
        # Most modules have no buffers, and `map` checks them all in C.
        places = self._flat if any(map(_buffers_of, self._modules)) else self._beside_buffers
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

    def _flatten(self) -> None:
        self._flat = [(attributes, name) for attributes, names in self._places.values() for name in names]
        self._modules = [attributes for attributes, name in self._flat if name == "_buffers"]
        self._beside_buffers = [each for each in self._flat if each[1] != "_buffers"]

    def is_free(self, code: Code) -> bool:
        """Whether a call may run concurrently with others at once."""
        if self.changing:
            return False
        return code in self._harmless or (code not in self._unsettled and not self._has_any())

    def _has_any(self) -> bool:
        """Whether there are tensors that a call could change for others."""
        if self.found().tensors:
            return True
        return any(name != "_buffers" and _is_writable(attributes.get(name)) for attributes, name in self._flat)

    @contextmanager
    def turn(self, parameter_locks: ParameterLocks, code: Code, nested: bool) -> Iterator[None]:
        """Waits until a call may run.

        Args:
            parameter_locks: Tells whether this thread may wait.
            code: The method or function that will run.
            nested: Whether the call is nested in another. Then it does not wait for a call that only runs for the first
                time, because that could be the outer call.

        Raises:
            WouldBlock: It would have to wait, and this thread must not.
            DeadlineExceededError: The deadline of the caller has passed.
        """
        if nested and not self.changing:
            taken = self._lock.acquire(blocking=False)
            try:
                yield
            finally:
                if taken:
                    self._lock.release()
            return
        with parameter_locks.alone(self._lock):
            yield

    def note_run(self, code: Code, before: Found, versions: Sequence[int], restructured: bool) -> None:
        """Notes the changes of a call that has run.

        Args:
            code: The method or function.
            before: The tensors before the call.
            versions: Their version counters before the call.
            restructured: Whether it has changed references to parameters.
        """
        if restructured:
            # A change in the first call only, which makes a tensor once, does not make later calls take turns.
            self.changing |= code in self._harmless
            self._unsettled.add(code)
        elif before.tensors and any(map(_is_written, before.tensors, versions)):
            self.changing = True
        else:
            self._harmless.add(code)

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Keeps normalization layers from changing their running statistics during a block."""
        locks = list(self._norms.values())
        for lock in locks:
            lock.acquire()
        try:
            yield
        finally:
            for lock in locks:
                lock.release()


def _is_written(tensor: torch.Tensor, version: int) -> bool:
    return tensor._version != version


def _is_writable(value: Any) -> bool:
    return is_container(value) or is_instance(value) or isinstance(value, types.FunctionType)


def _may_hold(name: str, value: Any) -> bool:
    if name in _TORCHS or is_atom(value):
        return False
    return not (isinstance(value, tuple) and all(map(is_atom, value)))
