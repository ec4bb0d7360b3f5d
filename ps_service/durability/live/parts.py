"""Parameters with what optimizers keep for them: the parts of an owner's state that every step changes."""

from __future__ import annotations

import math
import weakref
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch import optim

from ps_service.durability.tensors import is_native
from ps_service.training.copies import copied
from ps_wire.limits import MIB

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ps_service.engine import Engine
    from ps_service.hosting.objects import HostedObject
    from ps_service.parameters.state import ParameterState
    from ps_service.training.optimizers import HostedOptimizer

PIECE_BYTES: Final = 16 * MIB
"""Most bytes that are copied at once while steps wait, if what they belong to can be divided."""

_ROW_BY_ROW: Final = (
    *(optim.SGD, optim.Adam, optim.AdamW, optim.Adagrad, optim.RMSprop, optim.Adadelta, optim.Adamax, optim.NAdam),
    *(optim.RAdam, optim.ASGD, optim.Rprop, optim.SparseAdam),
)
"""Optimizers that step each element by itself, so that the rows of a parameter can be stepped apart."""

_ALIGNMENT: Final = 64
"""What is copied begins at multiples of so many bytes."""


def is_divisible(optimizer: HostedOptimizer) -> bool:
    """Whether an optimizer steps each parameter by itself, with options that its steps do not change."""
    return optimizer.is_torchs and not isinstance(optimizer.optimizer, optim.LBFGS)


class Part:
    """A parameter of an owner, with the ids of the modules that have it and its names there, and the optimizers that
    step it, with its places there."""

    def __init__(self, parameter: torch.Tensor, state: ParameterState) -> None:
        self.parameter = parameter
        self.parameter_state = state
        self.names: list[tuple[str, str]] = []
        self.users: list[tuple[HostedOptimizer, int]] = []

    def entry(self, optimizer: HostedOptimizer) -> Mapping[str, Any] | None:
        """What an optimizer keeps for it; None if that is nothing yet."""
        found: Mapping[str, Any] | None = optimizer.optimizer.state.get(self.parameter)
        return found

    def tensors(self) -> list[torch.Tensor]:
        """The parameter, and what optimizers keep for it as tensors."""
        kept = [value for optimizer, _ in self.users for value in (self.entry(optimizer) or {}).values()]
        return [self.parameter, *(each for each in kept if isinstance(each, torch.Tensor))]

    @property
    def nbytes(self) -> int:
        """Bytes of these."""
        return sum(each.nbytes for each in self.tensors())

    def rows_at_once(self) -> int:
        """How many rows may be copied at once; 0 if it has to be copied as a whole."""
        tensors = self.tensors()
        rows = self.parameter.shape[0] if self.parameter.dim() else 0
        if rows < 2 or not all(type(each.optimizer) in _ROW_BY_ROW for each, _ in self.users):
            return 0
        if not all(is_native(each) and each.is_contiguous() and not each.is_neg() for each in tensors):
            return 0
        if not all(each.shape == self.parameter.shape or each.dim() == 0 for each in tensors):
            return 0
        # Whole vectors of elements, so that the rows of a part are computed as those of all.
        step = _ALIGNMENT // math.gcd(self.parameter[0].numel(), _ALIGNMENT)
        return max(PIECE_BYTES // 2 // (self.nbytes // rows) // step * step, step)


class Mark:
    """Tells whether parts have changed since it was made."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._numbers = _numbers(parts)
        self._tensors = [weakref.ref(each) for part in parts for each in part.tensors()]

    def holds(self, parts: Sequence[Part]) -> bool:
        """Whether nothing has changed."""
        tensors = [each for part in parts for each in part.tensors()]
        return (
            len(tensors) == len(self._tensors)
            and all(known() is each for known, each in zip(self._tensors, tensors, strict=True))
            and self._numbers == _numbers(parts)
        )


def _numbers(parts: Sequence[Part]) -> list[Any]:
    found: list[Any] = []
    for part in parts:
        state = part.parameter_state
        found += state.steps, state.changes, state.writes, part.parameter.data_ptr()
        found += [each._version for each in part.tensors()]
        for optimizer, place in part.users:
            entry = part.entry(optimizer) or {}
            plain = [(name, value) for name, value in entry.items() if not isinstance(value, torch.Tensor)]
            found.append((optimizer.object_id, place, [*entry], plain))
    return found


class Copies(NamedTuple):
    """A part as it was at one moment. `states` has what optimizers keep for it, by their place among its users."""

    part: Part
    value: torch.Tensor
    states: dict[int, dict[str, Any]]


class Scratch:
    """Memory that is used again and again: copies into fresh memory take several times as long."""

    def __init__(self) -> None:
        self._memory = torch.zeros(0, dtype=torch.uint8)
        self._used = 0

    def reserve(self, nbytes: int) -> None:
        """Has room for so many bytes, and forgets what it held."""
        self._used = 0
        if len(self._memory) < nbytes:
            self._memory = torch.zeros(nbytes, dtype=torch.uint8)

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy on the CPU, which is good until `reserve` is called."""
        tensor, nbytes = tensor.detach(), tensor.nbytes
        end = self._used + nbytes + -nbytes % _ALIGNMENT
        if not is_native(tensor) or not tensor.is_contiguous() or not nbytes or end > len(self._memory):
            return tensor.to("cpu", copy=True)
        made = self._memory[self._used : self._used + nbytes].view(tensor.dtype).view(tensor.shape)
        self._used = end
        return made.copy_(tensor)

    def copies(self, part: Part, visible: torch.Tensor) -> Copies:
        """A copy of a part, whose values others see in a tensor. Nobody steps it meanwhile."""
        states = {}
        for place, (optimizer, _) in enumerate(part.users):
            if (entry := part.entry(optimizer)) is not None:
                states[place] = {
                    name: self.copy(value) if isinstance(value, torch.Tensor) else copied(value)
                    for name, value in entry.items()
                }
        return Copies(part, self.copy(visible), states)


def room_for(parts: Iterable[Part]) -> int:
    """The bytes that copies of some parts take."""
    return sum(each.nbytes + _ALIGNMENT for part in parts for each in part.tensors())


def parts_of(modules: Iterable[HostedObject], optimizers: Iterable[HostedOptimizer]) -> dict[int, Part]:
    """The parts of an owner by the `id` of their parameter, in the order of modules."""
    found: dict[int, Part] = {}
    for hosted in modules:
        for (name, own), state in zip(hosted.parameters.items(), hosted.parameter_states, strict=True):
            found.setdefault(id(own), Part(own, state)).names.append((hosted.ref.object_id, name))
    for optimizer in optimizers:
        for place, parameter in enumerate(optimizer.parameters):
            if id(parameter) in found:
                found[id(parameter)].users.append((optimizer, place))
    return found


def pieces_of(parts: Iterable[Part]) -> list[list[Part]]:
    """Groups parts, in their order, so that few groups are larger than a piece. One that is consists of one part."""
    found: list[list[Part]] = []
    room = 0
    for part in parts:
        nbytes = part.nbytes
        if nbytes > room or not found:
            found.append([])
            room = PIECE_BYTES
        found[-1].append(part)
        room -= nbytes
    return found


def objects_of(engine: Engine) -> list[HostedObject]:
    """The objects of an owner, and those that they were made from."""
    found: dict[str, HostedObject] = {}
    waiting = engine.registry.objects()[::-1]
    while waiting:
        hosted = waiting.pop()
        if hosted.ref.object_id not in found:
            found[hosted.ref.object_id] = hosted
            waiting.extend(hosted.creation_spec.dependencies if hosted.creation_spec is not None else ())
    return list(found.values())


def visible(engine: Engine, part: Part) -> Any:
    """A tensor with the memory of a parameter that no call has to itself."""
    with engine.parameter_locks.lock:
        return part.parameter_state.visible_of(part.parameter).data
