"""A private copy of a module's structure, whose tensors are shared.

A forward runs on a bound copy, in which fresh leaves replace the parameters. So many trainers can run one module
concurrently, each pass gets its own gradients, and `train()`/`eval()` belong to the call instead of the module.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from ps_service.hosting.containers import SharedContainer, entries
from ps_service.hosting.counterparts import Counterparts
from ps_service.hosting.histories import Ending
from ps_service.hosting.identities import BY_ID, BY_REFERENCE, in_weak_table, is_small, keeps_id
from ps_service.hosting.parts import Part, attribute_parts, differing, has_entries
from ps_service.hosting.referrers import Referrers
from ps_service.hosting.replacing import Counterpart
from ps_service.hosting.returned import Change, Returned
from ps_service.hosting.running_statistics import Evaluating, Reading, Updating, with_statistics
from ps_service.hosting.structure import is_atom, reaches

if TYPE_CHECKING:
    from ps_service.hosting.internals import Internals

_ABSENT: Final = object()

_copy: Final = methodcaller("copy")


class BoundCopy:
    """A copy of a module's structure.

    Args:
        module: The module to copy. Its submodules are copied, too, and all objects among its attributes that refer to
            its parameters or submodules, as far as `Structure` follows references. Everything else is shared with the
            original.
        training: Whether the copy is in training mode. If None, the copy and each of its parts have the modes of the
            originals, and get those that a run sets.
        internals: The tensors of the module besides its parameters.
    """

    def __init__(self, module: nn.Module, training: bool | None, internals: Internals) -> None:
        self._internals = internals
        with internals.structure_lock:
            self._generation = internals.generation
            self._made = made = Counterparts(module)
        self.module: nn.Module = made.module
        self._parts = made.parts
        self._containers = made.containers
        self._refilled = [container for container in made.containers if container.is_refilled]
        self._modules = [part.copy for part in made.parts if isinstance(part.copy, nn.Module)]
        # Hooks that a call registers at a layer are in the dicts of the original.
        self._hooks = [
            value
            for part in made.parts
            if isinstance(part.holder, nn.Module)
            for name, value in part.original.items()
            if name.endswith("_hooks") and isinstance(value, dict)
        ]
        self._changes: list[Change] | None = None
        self._bound: list[tuple[nn.Parameter, torch.Tensor]] = []
        if training is None:
            for part in self._parts:
                part.own.pop("training", None)
        else:
            self._set_mode(training)
        self._readings = self._guarded(module, training)
        # The attributes of each part: the original's when they were copied, and the copy's when a run began.
        self._hosted = [part.original for part in self._parts]
        self._attributes = [part.made for part in self._parts]
        self._given: list[dict[str, Any]] = [{} for _ in self._parts]
        self._begun: list[dict[str, Any]] = []
        self._touched: list[int] = []
        internals.learn([*self._parts, *attribute_parts(module.parameters())], self._generation)
        self._registered = [parameters for parameters, _ in made.registered]
        self._submodules = [modules for _, modules in made.registered]
        self._before = [modules.copy() for modules in self._submodules]
        self._leaves: list[dict[str, Any]] = []
        self._referrers = Referrers(made.objects)

    def _set_mode(self, training: bool) -> None:
        copied = [part.made.copy() for part in self._parts]
        self.module.train(training)
        for part, before in zip(self._parts, copied, strict=True):
            # Attributes that the module's own train() has set belong to the mode.
            now = part.made.items()
            part.own.update({key: value for key, value in now if before.get(key, _ABSENT) is not value})

    @property
    def is_current(self) -> bool:
        """Whether the references to parameters in the original have not changed since they were copied."""
        if self._generation != self._internals.generation:
            return False
        return not self._containers or not any(container.is_stale for container in self._containers)

    def bind(self, parameters: Sequence[nn.Parameter], leaves: Sequence[torch.Tensor]) -> None:
        """Replaces the parameters by leaves, and copies changed plain attributes from the original."""
        for reading in self._readings:
            reading.take()
        self._bound = list(zip(parameters, leaves, strict=True))
        self._referrers.note(self._bound)
        self._begin(self._refilled)

    def _begin(self, refilled: Sequence[SharedContainer]) -> None:
        for i in differing(self._hosted, self._given):
            part = self._parts[i]
            self._given[i] = part.original.copy()
            part.fill(self._given[i])
        self._put(refilled)
        self._leaves = list(map(_copy, self._registered))
        self._begun = list(map(_copy, self._attributes))
        for container in self._containers:
            container.note()

    def resume(self) -> None:
        """Uses a copy again that was still referred to when it was unbound, because hooks run in a backward."""
        self._begin([container for container in self._containers if container.is_refilled or container.is_stale])

    def pause(self) -> Exception | None:
        """Applies the changes of these hooks to the original; returns the error if that fails."""
        failed = None
        try:
            self._hand_on(Ending())
            self._reclaim()
        except Exception as error:
            failed = error
        self._internals.end_histories(())
        self._end()
        return failed

    def unbind(self, known: Container[int] = (), leaves_tensors: bool = True) -> Returned:
        """Applies the changes of the run to the original, and drops the leaves.

        References to leaves and parts of the copy become references to the parameters and parts of the original. The
        histories of tensors end.

        Args:
            known: `id()` of the tensors that had a history before the run.
            leaves_tensors: Whether the run may have stored tensors other than the parameters.
        """
        self.changes()
        whole, changed, failed = self._is_whole(), False, None
        remembered = self._remembered()
        try:
            if self._changes or self._touched:
                changed = self._hand_on(Ending(known))
        except Exception as error:
            # The module's own code has run, that of its containers for example.
            changed, failed = True, error
        if leaves_tensors:
            self._internals.end_histories(known)
        self._end()
        for reading in self._readings:
            reading.give_back()
        self._vacate()
        is_held, are_leaves_held = self._referrers.of_parts(), self._referrers.of_leaves(self._bound)
        if changed or is_held or are_leaves_held:
            changed |= self._reclaim()
            # What led to the copy from the original may not do so any more.
            is_held, are_leaves_held = self._referrers.of_parts(), self._referrers.of_leaves(self._bound)
        reusable = whole and not is_held and self._generation == self._internals.generation
        if is_held:
            # Hooks that run in the backward still find the values of their pass.
            self._put(self._refilled)
        else:
            self._bound = []
        return Returned(whole, is_held or are_leaves_held, is_held, changed, failed, remembered, reusable)

    def _remembered(self) -> str:
        """A message if the run has stored a value under the identity of a part, where later calls would not find it."""
        if any(map(in_weak_table, self._modules)):
            return f"has put the module or a submodule into a WeakKeyDictionary or WeakSet, but {BY_REFERENCE}"
        changes = [each for each in self._changes or () if not is_small(each.value)]
        if changes:
            ids = self.private_ids()
            if any(keeps_id(each.value, ids) for each in changes):
                return f"has kept the id() of a parameter or submodule, but {BY_ID}"
        return ""

    def changes(self) -> list[Change]:
        """The attributes that the run has set, and its changes to containers, which all later runs share."""
        if self._changes is None:
            parts, begun = self._parts, self._begun
            self._touched = differing(self._attributes, begun)
            found = [Change(parts[i], *each) for i in self._touched for each in parts[i].changes(begun[i])]
            for container in self._containers:
                if container.is_changed:
                    found.append(Change(None, "", container.difference().new, container))
            self._changes = found
        return self._changes

    def _hand_on(self, ending: Ending) -> bool:
        """Applies the changes of the run; returns whether references to parameters are among them."""
        originals: Counterpart | None = None
        changed = restructured = False
        with self._internals.structure_lock:
            for part, name, value, container in self.changes():
                if part is not None and is_atom(value) and name not in part.own:
                    part.original[name] = value
                    continue
                originals = originals or self._originals()
                if part is not None:
                    restructured |= self._hand_on_attribute(part, name, value, originals, ending)
                elif container is not None:
                    changed = True
                    restructured |= self._hand_on_container(container, value, originals, ending)
            for part, name in self._deleted():
                part.original.pop(name, None)
                restructured |= part.own.pop(name, None) is not None
            if restructured:
                self._internals.generation += 1
        return changed or restructured

    def _hand_on_attribute(self, part: Part, name: str, value: Any, originals: Counterpart, ending: Ending) -> bool:
        """Gives the original an attribute that the run has set; says whether other copies have to be made anew."""
        part.original[name] = kept = originals.of(self._internals.without_history(value, ending))
        self._internals.note_set(part, name, kept)
        was_own = part.own.pop(name, None) is not None
        return originals.replaced or was_own or name in part.leading

    def _hand_on_container(self, container: SharedContainer, new: Any, originals: Counterpart, ending: Ending) -> bool:
        """Does to a container of the original what the run has done; says whether other copies have to be made anew."""
        originals.of(self._internals.without_history(new, ending))
        gone = container.difference().gone
        is_gone = any(reaches(each, self.private_ids()) for each in gone)
        if is_gone:
            self._abandon(container.made)
        replaced = originals.replaced
        container.hand_back(lambda each: originals.resolved(ending.resolved(each)))
        originals.replaced = replaced  # what stands there as it did is nothing new
        return is_gone or replaced

    def _deleted(self) -> list[tuple[Part, str]]:
        """The attributes of the original that the run has deleted."""
        touched = [(self._parts[i], self._given[i]) for i in self._touched]
        return [(part, name) for part, given in touched for name in given.keys() - part.made.keys()]

    def _end(self) -> None:
        """Removes the state of this run alone. Hooks that run in the backward find the rest."""
        for i in self._touched:
            self._given[i] = {}
            self._parts[i].fill(self._parts[i].original)
        self._begun, self._touched, self._leaves, self._changes = [], [], [], None

    def _reclaim(self) -> bool:
        """Replaces references to this copy in objects that all runs share; returns whether there were any."""
        originals = self._originals()
        with self._internals.structure_lock:
            self._internals.replace(originals)
            for hooks in self._hooks:
                for key, hook in list(hooks.items()):
                    if (made := originals.of(hook)) is not hook:
                        hooks[key] = made
            for container in self._containers:
                for entry in entries(container.original):
                    for each in entry:
                        originals.of(each)
            if originals.replaced:
                self._internals.generation += 1
        return originals.replaced

    def _originals(self) -> Counterpart:
        """Replaces parts of the copy by their originals."""
        known = dict(zip(map(id, self._made.objects), self._made.originals, strict=True))
        known.update((id(leaf), parameter) for parameter, leaf in self._bound)
        for part in self._parts:
            if isinstance(part.own.get("forward"), (Updating, Evaluating)):
                known[id(part.own["forward"])] = part.holder.forward
        return Counterpart(known)

    def private_ids(self) -> set[int]:
        """`id()` of the objects of this run alone: the leaves, and the copy itself."""
        return {*map(id, self._made.objects), *(id(leaf) for _, leaf in self._bound)}

    def _guarded(self, module: nn.Module, training: bool | None) -> list[Reading]:
        """Lets the layers with running statistics take turns; returns those that only read them."""
        layers = set(map(id, with_statistics(module)))
        found = []
        for part in self._parts:
            if id(part.holder) in layers and isinstance(part.original, dict):
                lock = self._internals.norm_lock(part.holder)
                if training is None or part.copy.training:
                    part.own["forward"] = Updating(part.copy, lock)
                else:
                    found.append(Reading(part.holder._buffers, lock))
                    part.own["_buffers"] = found[-1].own
                    part.own["forward"] = Evaluating(part.copy, found[-1])
        return found

    def _put(self, refilled: Sequence[SharedContainer]) -> None:
        """Sets the leaves in the copy, and refills some containers from the original's."""
        for parameter, leaf in self._bound:
            for place, name in self._made.places.get(id(parameter), ()):
                place[name] = leaf
        if self._made.computed or refilled:
            known = dict(zip(map(id, self._made.originals), self._made.objects, strict=True))
            known.update((id(parameter), leaf) for parameter, leaf in self._bound)
            copies = Counterpart(known)
            for computed in self._made.computed:
                computed.container[computed.key] = copies.resolved(computed.original)
            for container in refilled:
                container.refill(copies.resolved)

    def _vacate(self) -> None:
        """Removes the leaves from the copy."""
        for places in self._made.places.values():
            for container, name in places:
                container[name] = None
        for computed in self._made.computed:
            computed.container[computed.key] = None
        for shared in self._containers:
            shared.forget()

    def _abandon(self, container: Any) -> None:
        """Stops setting leaves in a container, because the run has removed the parameters there."""
        for key, places in self._made.places.items():
            self._made.places[key] = [place for place in places if place[0] is not container]
        self._made.computed = [each for each in self._made.computed if each.container is not container]

    def _is_whole(self) -> bool:
        if self._submodules != self._before:
            return False
        changed = differing(self._registered, self._leaves)
        return all(has_entries(self._registered[i], self._leaves[i]) for i in changed)
