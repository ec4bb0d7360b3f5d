"""The views of an ordinary module, and what is known of its calls."""

from __future__ import annotations

import weakref
from collections import Counter
from typing import TYPE_CHECKING, Final

import torch
from torch import nn

from ps_service.hosting.identities import looks_itself_up
from ps_service.hosting.shared_leaves import SharedLeaves
from ps_service.hosting.structure import Structure, attributes_of
from ps_service.hosting.view import RECURRENT, View
from ps_service.parameters.state import readers_of
from ps_wire.decorators import takes_turns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ps_service.hosting.internals import Internals
    from ps_service.hosting.turns import Turns
    from ps_service.parameters.state import ParameterState, Readers
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


class Views:
    """The views of a module, one for each mode, and the calls that may run on them.

    A module is ordinary if only its own dicts refer to its parameters and submodules, and if its calls change nothing
    of it. The first is examined when it is made. For the second, the first calls of each kind run on the module itself,
    one at a time, and changes are looked for after them. A view is used under the lock of the parameters.

    Args:
        module: The module.
        refs: The handles of its parameters.
        states: The states of its parameters.
        internals: Its tensors besides the parameters.

    Attributes:
        writing: Number of steps that write to its parameters now.
        claimed: Number of steps that are about to write.
        parameters: The parameters of the module.
    """

    def __init__(
        self, module: nn.Module, refs: Sequence[Ref], states: Sequence[ParameterState], internals: Internals
    ) -> None:
        self.writing = self.claimed = 0
        self._calls = 0
        # By kind of call and length of its arguments, the bytes that torch saves for its backward.
        self._saved_bytes: dict[tuple[Call, int], int] = {}
        self._module = module
        self.parameters = list(module.parameters())
        self._refs = refs
        self._states = states
        self._internals = internals
        self._is_ordinary = is_ordinary(module)
        self._clean: dict[Call, int] = {}
        self._changes: Counter[Call] = Counter()
        self._refused: set[Call] = set()
        # None until the first call runs on a view.
        self._leaves: SharedLeaves | None = None
        self._are_stale = False
        self._of: dict[bool | None, View] = {}
        # These, and those on which calls still run or to which graphs refer.
        self._made: list[View] = []
        if self._is_ordinary:
            reference: weakref.ref[Readers] = weakref.ref(self)
            for state in states:
                state.readers.append(reference)

    def admits(self, call: Call, turns: Turns) -> bool:
        """Whether a call may run on a view.

        Args:
            call: The call.
            turns: Those of the module itself: a call that has one may be changing attributes.
        """
        name, training, is_recorded = call
        # Code without a name never writes to parameters.
        is_reading = not name and not is_recorded and call not in self._refused
        if not self._is_ordinary or (not is_reading and self._clean.get(call, 0) < CLEAN_CALLS):
            return False
        view = self._of.get(training)
        if turns.running:
            return view is not None
        if view is None or not view.follows():
            # Earlier calls may have set attributes that refer to parameters.
            self._is_ordinary = is_ordinary(self._module)
            self._of.pop(training, None)
        return self._is_ordinary

    def asks_for(self, call: Call) -> bool:
        """Whether it is to be told if a call on the module itself changes nothing."""
        return self._is_ordinary and call not in self._refused

    def note(self, call: Call, is_clean: bool) -> None:
        """Notes whether a call on the module itself has changed nothing."""
        if is_clean:
            self._clean[call] = self._clean.get(call, 0) + 1
            return
        self._clean[call] = 0
        self._changes[call] += 1
        if self._changes[call] > MOST_CHANGES:
            self._refused.add(call)

    def expected_bytes(self, call: Call, nbytes: int) -> int | None:
        """The bytes that torch saves in a call with arguments of this length; None if they are to be counted.

        They are counted in the first such call, and now and then in later ones.
        """
        self._calls += 1
        return None if self._calls % COUNTED_EVERY == 0 else self._saved_bytes.get((call, nbytes))

    def note_saved(self, call: Call, nbytes: int, saved: int) -> None:
        """Notes the bytes that torch has saved in a call."""
        if len(self._saved_bytes) >= MOST_LENGTHS:
            self._saved_bytes.clear()
        known = self._saved_bytes.get((call, nbytes), 0)
        self._saved_bytes[call, nbytes] = max(known, saved)

    @property
    def running(self) -> int:
        """Number of calls that run on views."""
        return sum([view.running for view in self._made])

    def await_calls(self) -> bool:
        """Does not wait: the leaves of calls on views keep the values from before a step."""
        return False

    def await_writer(self) -> None:
        """Does not wait, as `await_calls`."""

    def is_used(self) -> bool:
        """Whether a parameter may be needed by a call that runs, by an open graph or by other code."""
        for view in self._made:
            if view.running or view.is_referred():
                return True
        return self._leaves is not None and self._leaves.uses.any()

    def saved(self) -> set[int]:
        """`id()` of the states of parameters that are needed besides by calls that run."""
        if self._leaves is None:
            return set()
        if self._are_referred():
            return set(map(id, self._states))
        return {id(self._states[i]) for i in self._leaves.uses.places()}

    def _are_referred(self) -> bool:
        # The frames of running calls refer to views, too.
        return any([not view.running and view.is_referred() for view in self._made])

    def note_moved(self) -> None:
        """Notes that parameters may have moved, or were frozen."""
        self._are_stale = True

    def note_written(self, state: ParameterState) -> None:
        """Notes that hosted code has written to a parameter: graphs that have saved its leaf must not use it."""
        if self._leaves is not None:
            self._leaves.note_written([i for i, each in enumerate(self._states) if each is state])
            self._are_stale = True

    def begin(self, training: bool | None) -> tuple[View, SharedLeaves]:
        """The view for a call that begins now, and its leaves. The call has ended with `end`."""
        leaves = self._leaves
        if leaves is None:
            leaves = self._leaves = SharedLeaves(self.parameters, self._refs, self._states)
            self._expect_leaves()
        if self._are_stale:
            leaves.renew()
            self._are_stale = False
        view = self._of.get(training)
        if view is None or (view.version != leaves.version and not self._can_change(view)):
            view = self._of[training] = View(self._module, training, self._internals)
            view.put(leaves.current.leaves, leaves.version, leaves.uses)
            view.begin()
            self._made.append(view)
        elif view.version != leaves.version:
            view.put(leaves.current.leaves, leaves.version, leaves.uses)
        view.running += 1
        return view, leaves

    def _can_change(self, view: View) -> bool:
        return not view.running and not view.is_referred()

    def _expect_leaves(self) -> None:
        """Has the views of all modules with the same parameters know that there is one more leaf on their memory."""
        for readers in readers_of(self._states):
            readers.expect_leaves()

    def expect_leaves(self) -> None:
        """Notes that another module has made leaves on parameters of this one, or that this one has."""
        if self._leaves is not None:
            counts = [sum([each.has_leaves for each in readers_of([state])]) for state in self._states]
            self._leaves.uses.expect_leaves(counts)

    @property
    def has_leaves(self) -> bool:
        """Whether it has leaves on the memory of its parameters."""
        return self._leaves is not None

    def end(self, view: View) -> None:
        """Notes that a call has ended."""
        view.running -= 1
        if len(self._made) > len(self._of):
            current = list(self._of.values())
            self._made = [each for each in self._made if each in current or each.running or each.is_referred()]

    def refuse_all(self) -> None:
        """Has no call run on a view any more, because one has found parameters in another way than through the view."""
        self._is_ordinary = False

    def refuse(self, view: View, call: Call) -> None:
        """Has no call of a kind run on a view any more, because one has changed the module, and drops its view."""
        self._clean.pop(call, None)
        self._refused.add(call)
        self._are_stale = True
        self._of = {training: each for training, each in self._of.items() if each is not view}


def is_ordinary(module: nn.Module) -> bool:
    """Whether nothing but the dicts of a module and its submodules refers to its parameters and submodules."""
    if not all(map(_is_plain, module.parameters())) or looks_itself_up(module):
        return False
    if any(takes_turns(type(each)) for each in module.modules()):
        return False
    structure = Structure(module)
    return all(_is_ordinary(each, structure) for each in module.modules())


def _is_plain(parameter: nn.Parameter) -> bool:
    """Whether a parameter has no hooks and no attributes of its own."""
    if type(parameter) is not nn.Parameter or parameter.layout is not torch.strided:
        return False
    return not (parameter.__dict__ or parameter._backward_hooks or parameter._post_accumulate_grad_hooks)


def _is_ordinary(module: nn.Module, structure: Structure) -> bool:
    name = type(module).__module__
    if any(name.startswith(each) for each in _OTHERS) or len(attributes_of(module)) != 1:
        return False
    recurrent = isinstance(module, nn.RNNBase)
    for name, value in module.__dict__.items():
        if name.endswith("_hooks") and value:
            return False
        if name in ("_parameters", "_modules") or (recurrent and name in RECURRENT):
            continue
        if structure.leads(value):
            return False
    return True


_OTHERS: Final = ("torch.jit.", "torch._dynamo.", "torch.fx.", "torch.ao.", "torch.distributed.")
"""Packages of torch whose modules are no plain Python."""
