"""The tensors that a module keeps beside its parameters, and the turns of the calls that change them."""

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

Code = tuple[str, bool]
"""What runs on a module: the name of a method or function, and whether it runs in training mode."""

MOST: Final = 1000
"""Objects behind one attribute that are looked at for tensors."""

_buffers_of: Final = methodcaller("get", "_buffers")

_TORCHS: Final = frozenset(vars(nn.Module())) - {"_buffers"}
"""Attributes of every module, which hold no tensors that its calls return."""


class Found(NamedTuple):
    """The tensors that a module keeps.

    Attributes:
        tensors: The tensors.
        is_all: Whether these are all; if there are very many, they are not looked for.
    """

    tensors: list[torch.Tensor]
    is_all: bool


class Internals:
    """Knows where a module keeps tensors, and lets calls that change them in place take turns.

    A call that has run before and has changed none runs beside others. What is not known yet, and everything once some
    call has been seen to change a tensor, runs alone. Running statistics of normalization layers do not count: those
    layers take turns themselves, each for its own forward.

    Args:
        parameters: Ids of the module's parameters.

    Attributes:
        changing: Whether some call has changed a tensor in place, or at once with others what leads to parameters.
        ends_histories: Whether some call has left a tensor with a history behind.
        is_remembered: Whether something has gone on using a copy of the module after its call.
        structure_lock: Held while what leads to parameters is changed, or copied.
        generation: How often it has been changed.
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
        # So that no id is used again meanwhile.
        self._holders: dict[int, Any] = {}
        self._learned = 0
        # The same, to be gone through quickly.
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
        """Where the parts of a module may keep tensors.

        Args:
            parts: The parts of a copy.
            generation: The one in which it was made.
        """
        with self.structure_lock:
            self._learn(parts, generation)

    def _learn(self, parts: Sequence[Part], generation: int) -> None:
        if generation > self._learned:
            # Some of those that were known may be gone.
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
        """A run has set an attribute, which all runs share from now on."""
        names = self._places.setdefault(part.key, (part.original, set()))[1]
        if name not in names and _may_hold(name, value):
            names.add(name)
            self._harmless.clear()
            self._flatten()

    def without_history(self, value: Any, ending: Ending) -> Any:
        """What later runs are to find in the place of a value: the same without what its tensors were computed from."""
        tensors: list[torch.Tensor] = []
        tensors_below(value, tensors, MOST)
        if not any(map(ending.is_meant, tensors)):
            return value
        self.ends_histories = True
        return ending.of(value)

    def end_histories(self, known: Container[int]) -> None:
        """A run is over: ends the histories of what it has left in places that all runs share.

        Args:
            known: Ids of the tensors that had a history before.
        """
        if not any(has_open_history(tensor) and id(tensor) not in known for tensor in self.found().tensors):
            return
        # One run has seen what another was about to replace: from now on they take turns.
        self.changing = True
        ending = Ending(known)
        for attributes, name in self._flat:
            value = attributes.get(name)
            made = self.without_history(value, ending)
            if made is not value:
                attributes[name] = made

    def replace(self, replacing: Replacing) -> None:
        """Puts other objects in the place of some, in what all runs share."""
        for attributes, name in self._flat:
            value = attributes.get(name)
            if (made := replacing.of(value)) is not value:
                attributes[name] = made

    def found(self) -> Found:
        """The tensors that the module keeps now."""
        tensors: list[torch.Tensor] = []
        is_all = True
        # Most modules have no buffers, and C tells that of all at once.
        places = self._flat if any(map(_buffers_of, self._modules)) else self._beside_buffers
        for attributes, name in places:
            value = attributes.get(name)
            if isinstance(value, torch.Tensor):
                tensors.append(value)
            elif value or not isinstance(value, (dict, list)):
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
        """Whether a call may run beside others without further ado."""
        if self.changing:
            return False
        return code in self._harmless or (code not in self._unsettled and not self._has_any())

    def _has_any(self) -> bool:
        """Whether there is anything that a call could change for others."""
        if self.found().tensors:
            return True
        return any(name != "_buffers" and _is_writable(attributes.get(name)) for attributes, name in self._flat)

    @contextmanager
    def turn(self, parameter_locks: ParameterLocks, code: Code, nested: bool) -> Iterator[None]:
        """Waits until a call may run.

        Args:
            parameter_locks: Knows whether this thread may wait.
            code: What will run.
            nested: Whether the call is made for another: then it does not wait for one only because that is not known
                yet; it could be the very one that it is made for.

        Raises:
            WouldBlock: It would have to wait, and must not.
            DeadlineExceededError: The caller's time was up.
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
        """A call has run.

        Args:
            code: What ran.
            before: The tensors that were there.
            versions: How often each had been written to then.
            restructured: Whether it has changed what leads to parameters.
        """
        if restructured:
            # Something that is made once, in the first call, need not hold up all later ones.
            self.changing |= code in self._harmless
            self._unsettled.add(code)
        elif before.tensors and any(map(_is_written, before.tensors, versions)):
            self.changing = True
        else:
            self._harmless.add(code)

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """While the block runs, no normalization layer changes its running statistics."""
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
