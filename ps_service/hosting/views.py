"""The views of an ordinary module, with leaves in the place of its parameters, and what is known of its calls."""

from __future__ import annotations

import sys
import time
import weakref
from collections import Counter
from operator import gt
from typing import TYPE_CHECKING, Any, Final

from torch import nn

from ps_service.hosting.contents import Dicts
from ps_service.hosting.leaves import SharedLeaves
from ps_service.hosting.ordinary import is_ordinary
from ps_service.hosting.running_statistics import Guarded
from ps_service.hosting.turns import PATIENCE_SECONDS, Turns, shared_turns
from ps_service.parameters.state import Readers, readers_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from ps_service.hosting.internals import Internals
    from ps_service.hosting.leaves import Leaf
    from ps_service.parameters.locks import ParameterLocks
    from ps_service.parameters.state import ParameterState
    from ps_wire.refs import Ref

Call = tuple[str, bool | None, bool]
"""The method that runs on a module, whether it runs in training mode, and whether it is recorded."""

CLEAN_CALLS: Final = 2
"""Calls in a row that changed nothing, after which further ones run on a view."""

MOST_CHANGES: Final = 4
"""Calls that changed something, after which no call of the same kind is tried again. First calls may fill caches."""

COUNTED_EVERY: Final = 64
"""Of the calls on views, every one of this number has the bytes counted that torch saves."""

MOST_LENGTHS: Final = 256
"""Most lengths of arguments for which these bytes are remembered."""


class View:
    """A shallow structure that the calls of one mode share: modules of the same classes as the originals, with the same
    attributes. Without `training`, the parts have the modes that those of the module have now.

    `modules` are those of the structure, each with its original. `running` is the number of calls that run on it, and
    `version` that of its leaves. `follows` tells whether the attributes of the originals are as when it was made.
    """

    def __init__(self, module: nn.Module, training: bool | None, internals: Internals) -> None:
        self.running = 0
        self.version = -1
        # For each parameter, the dicts of modules in which it stands.
        self._places: list[list[tuple[dict[str, Any], str]]] = [[] for _ in module.parameters()]
        positions = {id(each): i for i, each in enumerate(module.parameters())}
        originals = list(module.modules())
        twins: dict[int, nn.Module] = {id(each): object.__new__(type(each)) for each in originals}
        for original in originals:
            attributes = twins[id(original)].__dict__
            attributes.update(original.__dict__)
            attributes["_parameters"] = parameters = dict.fromkeys(original._parameters)
            attributes["_modules"] = {
                name: None if each is None else twins[id(each)] for name, each in original._modules.items()
            }
            for name, parameter in original._parameters.items():
                if parameter is not None:
                    self._places[positions[id(parameter)]].append((parameters, name))
        self._own = list(twins.values())
        self.module = self._own[0]
        self.modules = list(zip(self._own, originals, strict=True))
        if training is not None:
            self.module.train(training)
        for made, original in self.modules:
            if (lock := internals.norm_locks.get(id(original))) is not None:
                made.__dict__["forward"] = Guarded(made, lock)
        self._recurrent = [i for i, each in enumerate(self._own) if isinstance(each, nn.RNNBase)]
        lists = [id(self._own[i]._parameters) for i in self._recurrent]
        # A leaf is in the dict of a module, in what is known of that dict, and in the list of a recurrent layer.
        self._references_to = [sum(3 if id(place) in lists else 2 for place, _ in each) for each in self._places]
        self._present: list[Leaf | None] = [None] * len(self._places)
        self.follows = Dicts([each.__dict__ for each in originals]).are_same

    def count_references(self) -> None:
        """Counts the references to its modules, before the first call runs on it."""
        self._counted = [*self._own, *(each._parameters for each in self._own)]
        self._references = list(map(sys.getrefcount, self._counted))

    def put(self, leaves: SharedLeaves) -> None:
        """Sets the leaves that have been replaced since it had some. No call runs on it."""
        for i, leaf in enumerate(leaves.current.leaves):
            if self._present[i] is leaf:
                continue
            self._present[i] = leaf
            for place, name in self._places[i]:
                place[name] = leaf.tensor
            leaves.expect(i, self._references_to[i])
        for layer in map(self._own.__getitem__, self._recurrent):
            names: Any = layer._flat_weights_names
            weights = [getattr(layer, name, None) for name in names]
            layer.__dict__["_flat_weights"] = weights
            layer.__dict__["_flat_weight_refs"] = [None if each is None else weakref.ref(each) for each in weights]
        self.version = leaves.version
        self._begun = Dicts([each for made in self._own for each in (made.__dict__, made._parameters, made._modules)])

    def leave(self, leaves: SharedLeaves) -> None:
        """Its references to the leaves are not expected any more, because it is dropped: they would hide others."""
        for i, leaf in enumerate(self._present):
            if leaf is not None and leaf.tensor is leaves.tensors[i]:
                leaves.expect(i, -self._references_to[i])

    def is_referred(self) -> bool:
        """Whether other objects, such as closures in an open graph, refer to its modules or dicts of parameters."""
        return any(map(gt, map(sys.getrefcount, self._counted), self._references))

    def changes(self) -> list[tuple[nn.Module, str, Any]]:
        """What calls have set or deleted: a module, the name of the attribute, and the value or `ABSENT`. The modules
        are the originals. The name is empty for a parameter or submodule."""
        if self._begun.are_same():
            return []
        return [(self.modules[i // 3][1], name if i % 3 == 0 else "", new) for i, name, new in self._begun.changes()]

    def private_ids(self) -> set[int]:
        """`id()` of its modules and leaves."""
        leaves = (id(leaf.tensor) for leaf in self._present if leaf is not None)
        return {*map(id, self._own), *leaves}


class Views(Readers):
    """The views of a module, one for each mode, and the calls that may run on them. They are used under the lock of the
    parameters. For steps, it stands for all calls of the module, also those on the module itself (`turns`).

    A module is ordinary if only its own dicts refer to its parameters and submodules, and if its calls change nothing
    of it. The first is examined when it is made (`is_ordinary`). For the second, the first calls of each kind run on
    the module itself, one at a time, and changes are looked for after them.
    """

    turns: Turns

    def __init__(
        self,
        module: nn.Module,
        refs: Sequence[Ref],
        states: Sequence[ParameterState],
        internals: Internals,
        locks: ParameterLocks,
    ) -> None:
        self.parameters = list(module.parameters())
        self._locks = locks
        self._calls = 0
        # By kind of call and length of its arguments, the bytes that torch saves for its backward.
        self._saved_bytes: dict[tuple[Call, int], int] = {}
        self._module = module
        self._refs = refs
        self._states = states
        self._internals = internals
        self.is_ordinary = is_ordinary(module)
        # Of each kind, the calls in a row that changed nothing, and all that changed something.
        self._clean: Counter[Call] = Counter()
        self._changes: Counter[Call] = Counter()
        # None until the first call runs on a view.
        self._leaves: SharedLeaves | None = None
        self._are_stale = False
        self._of: dict[bool | None, View] = {}
        # These, and those on which calls still run or to which graphs refer.
        self._made: list[View] = []
        reference: weakref.ref[Readers] = weakref.ref(self)
        with locks.lock:
            self.turns = shared_turns(locks, self._others(states))
            self.turns.users.add(self)
            for state in states:
                state.readers.append(reference)

    def admits(self, call: Call) -> bool:
        """Whether a call may run on a view."""
        name, training, is_recorded = call
        # Code without a name never writes to parameters.
        is_reading = not name and not is_recorded and self._changes[call] <= MOST_CHANGES
        if not self.is_ordinary or (not is_reading and self._clean[call] < CLEAN_CALLS):
            return False
        view = self._of.get(training)
        turns = self.turns
        if turns.holder is not None and turns.are_taken():
            return view is not None  # that call may be changing attributes
        if view is None or not view.follows():
            # Earlier calls may have set attributes that refer to parameters.
            self.is_ordinary = is_ordinary(self._module)
            self._of.pop(training, None)
        return self.is_ordinary

    def asks_for(self, call: Call) -> bool:
        """Whether it is to be told if a call on the module itself changes nothing."""
        return self.is_ordinary and self._changes[call] <= MOST_CHANGES

    def note(self, call: Call, is_clean: bool) -> None:
        """Notes whether a call on the module itself has changed nothing."""
        self._clean[call] = self._clean[call] + 1 if is_clean else 0
        self._changes[call] += not is_clean

    def refuse(self, view: View, call: Call) -> None:
        """Has no call of a kind run on a view any more, because one has changed the module, and drops its view."""
        self._clean[call], self._changes[call] = 0, MOST_CHANGES + 1
        self._are_stale = True
        self._of = {training: each for training, each in self._of.items() if each is not view}

    def examine_again(self) -> None:
        """Has the module examined before the next call on a view, because parameters may have hooks or attributes."""
        self._of.clear()

    def expected_bytes(self, call: Call, nbytes: int) -> int | None:
        """The bytes that torch saves in a call with arguments of this length; None if they are to be counted. They are
        counted in the first such call, and now and then in later ones."""
        self._calls += 1
        return None if self._calls % COUNTED_EVERY == 0 else self._saved_bytes.get((call, nbytes))

    def note_saved(self, call: Call, nbytes: int, saved: int) -> None:
        """Notes the bytes that torch has saved in a call."""
        if len(self._saved_bytes) >= MOST_LENGTHS:
            self._saved_bytes.clear()
        known = self._saved_bytes.get((call, nbytes), 0)
        self._saved_bytes[call, nbytes] = max(known, saved)

    def begin(self, training: bool | None) -> tuple[View, SharedLeaves]:
        """The view for a call that begins now, and its leaves. The call ends with `end`."""
        leaves = self._leaves
        if leaves is None:
            leaves = self._leaves = SharedLeaves(self.parameters, self._refs, self._states)
        if self._are_stale:
            leaves.renew()
            self._are_stale = False
        view = self._of.get(training)
        if view is not None and view.version != leaves.version:
            if view.running or view.is_referred():
                view = None
            else:
                view.put(leaves)
        if view is None:
            view = self._of[training] = View(self._module, training, self._internals)
            view.put(leaves)
            view.count_references()
            self._made.append(view)
        view.running += 1
        return view, leaves

    def end(self, view: View) -> None:
        """Notes that a call has ended."""
        view.running -= 1
        if len(self._made) > len(self._of):
            current = list(self._of.values())
            made, self._made = self._made, []
            for each in made:
                if each in current or each.running or each.is_referred():
                    self._made.append(each)
                elif self._leaves is not None:
                    each.leave(self._leaves)

    def await_views(self) -> None:
        """Waits until no call runs on a view, for a bounded time. New calls wait meanwhile, because a step writes. The
        buffers of views are those of the module."""
        until = time.monotonic() + PATIENCE_SECONDS
        with self._locks.lock:
            while any([view.running for view in self._made]) and (left := until - time.monotonic()) > 0:
                self._locks.wait(left)

    @property
    def running(self) -> int:
        return self.turns.are_taken() + sum([view.running for view in self._made])

    def is_used(self) -> bool:
        for view in self._made:
            if view.running or view.is_referred():
                return True
        if self.turns.holder is not None and self.turns.are_taken():
            return True
        return self._leaves is not None and any(self._leaves.used(self._leaves_of_others))

    def saved(self) -> set[int]:
        if self._leaves is None:
            return set()
        # The frames of running calls refer to views, too.
        if any([not view.running and view.is_referred() for view in self._made]):
            return set(map(id, self._states))
        used = self._leaves.used(self._leaves_of_others)
        return {id(state) for state, is_used in zip(self._states, used, strict=True) if is_used}

    def note_moved(self) -> None:
        self._are_stale = True

    def note_written(self, state: ParameterState) -> None:
        if self._leaves is not None:
            self._leaves.note_written(self._states.index(state))
            self._are_stale = True

    def _leaves_of_others(self, i: int) -> list[torch.Tensor]:
        """The leaves of other modules with the parameter at a position. A step asks these whether they are used."""
        state = self._states[i]
        return [leaf for each in self._others([state]) if (leaf := each.leaf_of(state)) is not None]

    def _others(self, states: Sequence[ParameterState]) -> list[Views]:
        """Those of other modules that have some of these parameters."""
        return [each for each in readers_of(states) if isinstance(each, Views) and each is not self]

    def leaf_of(self, state: ParameterState) -> torch.Tensor | None:
        """Its leaf for a parameter, if calls have run on views."""
        return None if self._leaves is None else self._leaves.tensors[self._states.index(state)]
