"""Bound copies: private copies of a module's structure, whose tensors are shared.

A forward runs on a bound copy with fresh leaves in the place of the parameters. So many trainers can run one module at
once, each pass gets its own gradients, and `train()`/`eval()` belong to the call instead of to the module.
"""

from __future__ import annotations

import sys
from collections.abc import Container, Sequence
from operator import gt
from typing import Any, NamedTuple

import torch
from torch import nn

from ps_service.hosting.counterparts import Counterparts, Part
from ps_service.hosting.histories import Ending
from ps_service.hosting.internals import Internals
from ps_service.hosting.running_statistics import Reading, Updating, with_statistics
from ps_service.hosting.structure import reaches

_ABSENT = object()


class BoundCopy:
    """A copy of a module's structure.

    Args:
        module: The module to copy. Its submodules are copied too, and so is everything among its attributes that leads
            to a parameter or submodule of it, as far as `Structure` follows; everything else is shared with the
            original.
        training: The mode the copy is in.
        internals: The tensors of the module beside its parameters.
    """

    def __init__(self, module: nn.Module, training: bool, internals: Internals) -> None:
        self._internals = internals
        made = Counterparts(module)
        self.module: nn.Module = made.module
        self._parts = made.parts
        self._places = made.places
        self._computed = made.computed
        self._objects = made.objects
        self._given: list[dict[str, Any]] = []
        # What is of no use to any other run: the leaves, and this very copy.
        self._private = set(map(id, made.objects))
        self._leaves: dict[int | None, Any] = {}
        copied = [part.made.copy() for part in self._parts]
        self.module.train(training)
        for part, before in zip(self._parts, copied, strict=True):
            # What a train() of the module's own has set belongs to the mode.
            now = part.made.items()
            part.own.update({key: value for key, value in now if before.get(key, _ABSENT) is not value})
        self._readings = self._guarded(module)
        internals.learn(self._parts)
        self._set: list[tuple[Part, str, Any]] | None = None
        self._registered = made.registered
        self._shape = [(len(parameters), modules.copy()) for parameters, modules in made.registered]
        self._standing = _standing(made)
        self._holders: list[int] = []

    def bind(self, parameters: Sequence[nn.Parameter], leaves: Sequence[torch.Tensor]) -> None:
        """Puts leaves in the place of parameters, and takes over what changed in the original's plain attributes."""
        if not self._holders:
            self._holders = self._counted()
        for reading in self._readings:
            reading.take()
        for part in self._parts:
            given = part.original.copy()
            self._given.append(given)
            part.made.update(given)
            part.made.update(part.own)
        self._leaves = {id(parameter): leaf for parameter, leaf in zip(parameters, leaves, strict=True)}
        self.put()

    def unbind(self, known: Container[int] = ()) -> bool:
        """Hands plain attributes that the run has set or deleted on to the original, and lets go of the leaves.

        Except what only this run can use: what leads to a leaf or to a part of the copy. The history of tensors ends.

        Args:
            known: Ids of the tensors that had a history before the run.

        Returns:
            Whether the run has left the structure as it was: no parameter or submodule added, replaced or deleted.
        """
        whole = self._is_whole()
        ending = Ending(known)
        for part, name, value in self.set():
            kept = self._internals.without_history(value, ending)
            part.original[name] = kept
            self._internals.note_set(part, name, kept)
        self._internals.end_histories(known)
        for part, given in zip(self._parts, self._given, strict=True):
            original, attributes = part.original, part.made
            for name in given.keys() - attributes.keys():
                original.pop(name, None)
            # What belonged to this run alone goes; hooks that run on the way back still find everything else.
            attributes.clear()
            attributes.update(original)
            attributes.update(part.own)
        self._given.clear()
        self._set = None
        for reading in self._readings:
            reading.give_back()
        return whole

    def set(self) -> list[tuple[Part, str, Any]]:
        """The plain attributes that the run has set and that all runs will share: where, name and value."""
        if self._set is None:
            # What the run has not set itself, others may have set meanwhile.
            self._set = [
                (part, name, value)
                for part, given in zip(self._parts, self._given, strict=True)
                for name, value in part.made.items()
                if given.get(name, _ABSENT) is not value and name not in part.own and not self._is_private(value)
            ]
        return self._set

    def _guarded(self, module: nn.Module) -> list[Reading]:
        """Lets the layers with running statistics take turns; returns those that only read them."""
        layers = set(map(id, with_statistics(module)))
        found = []
        for part in self._parts:
            if id(part.holder) in layers and isinstance(part.original, dict):
                lock = self._internals.norm_lock(part.holder)
                if part.copy.training:
                    part.own["forward"] = Updating(part.copy, lock)
                else:
                    found.append(Reading(part.holder._buffers, lock))
                    part.own["_buffers"] = found[-1].own
        return found

    def _is_private(self, value: Any) -> bool:
        return reaches(value, self._private.union(map(id, self._leaves.values())))

    def put(self) -> None:
        """Puts the leaves where the parameters stand."""
        for key, places in self._places.items():
            leaf = self._leaves[key]
            for container, name in places:
                container[name] = leaf
        for container, name, build in self._computed:
            container[name] = build(self._leaves)

    def clear(self) -> None:
        """Lets go of the leaves."""
        for places in self._places.values():
            for container, name in places:
                container[name] = None
        for container, name, _ in self._computed:
            container[name] = None
        self._leaves = {}

    @property
    def is_held(self) -> bool:
        """Whether anything but the bound copy itself refers to a part of it, such as a hook in an open graph."""
        return any(map(gt, self._counted(), self._holders))

    def _counted(self) -> list[int]:
        return list(map(sys.getrefcount, self._objects))

    def _is_whole(self) -> bool:
        for (parameters, modules), (count, before) in zip(self._registered, self._shape, strict=True):
            if len(parameters) != count or modules != before:
                return False
        leaves = self._leaves
        return all(parameters.get(name) is leaves.get(key) for parameters, name, key in self._standing)


class BoundCopies:
    """Keeps a few bound copies of one module, because making one costs ten times as much as binding it."""

    def __init__(self, module: nn.Module, keep: int = 4) -> None:
        self._module = module
        self._keep = keep
        self.internals = Internals()
        # One is made at once, to learn where the module keeps tensors.
        self._free: dict[bool, list[BoundCopy]] = {True: [BoundCopy(module, True, self.internals)], False: []}

    def lend(self, training: bool, parameters: Sequence[nn.Parameter], leaves: Sequence[torch.Tensor]) -> BoundCopy:
        """A bound bound copy. Safe to call from several threads."""
        try:
            bound_copy = self._free[training].pop()
        except IndexError:
            bound_copy = BoundCopy(self._module, training, self.internals)
        bound_copy.bind(parameters, leaves)
        return bound_copy

    def take_back(self, training: bool, bound_copy: BoundCopy, known: Container[int] = ()) -> Returned:
        """Unbinds a bound copy after its run, and keeps it for another if nothing refers to it any more.

        Args:
            training: The mode that it is in.
            bound_copy: The bound copy.
            known: Ids of the tensors among the attributes that had a history before the run.
        """
        whole = bound_copy.unbind(known)
        if whole and not bound_copy.is_held:
            bound_copy.clear()
            free = self._free[training]
            if len(free) < self._keep:
                free.append(bound_copy)
            return Returned(whole, False)
        # Hooks that run on the way back still find the numbers of their pass.
        bound_copy.put()
        return Returned(whole, True)


class Returned(NamedTuple):
    """How a bound copy came back.

    Attributes:
        whole: Whether the run has left the structure as it was: no parameter or submodule added, replaced or deleted.
        held: Whether something goes on using the bound copy, and with it the leaves.
    """

    whole: bool
    held: bool


def _standing(made: Counterparts) -> list[tuple[dict[str, Any], str, int | None]]:
    """The entries of `_parameters`: which parameter stands there, if any does."""
    registered = {id(parameters): parameters for parameters, _ in made.registered}
    found: list[tuple[dict[str, Any], str, int | None]] = [
        (registered[id(container)], name, key)
        for key, places in made.places.items()
        for container, name in places
        if id(container) in registered
    ]
    filled = {(id(parameters), name) for parameters, name, _ in found}
    for parameters in registered.values():
        found += [(parameters, name, None) for name in parameters if (id(parameters), name) not in filled]
    return found
