"""One hosted module while one call runs on it."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch

from ps_service.hosting.aliases import is_within
from ps_service.hosting.internals import MOST, Found
from ps_service.hosting.leaf import Leaf
from ps_service.hosting.structure import tensors_below
from ps_service.parameters.leaves import is_written, let_go, stand_in
from ps_service.parameters.locks import COPY_AT_MOST, ParameterLocks
from ps_service.passes import refusals, writes
from ps_service.passes.late_runs import LateRun
from ps_service.passes.leaf_watch import LeafWatch
from ps_service.passes.saved_tensors import Hold, Watch

if TYPE_CHECKING:
    from torch import nn

    from ps_service.hosting.objects import HostedObject
    from ps_service.hosting.returned import Returned
    from ps_service.parameters.reading import Reading


class Binding:
    """A bound copy of a module, whose parameters are pinned until the call has ended.

    It is made when the call first uses the module. When the code has returned, three steps follow: `kept` finds tensors
    that outlive the call, `give_back` unbinds the copy and collects the changes of the code, and `settle` applies them
    to the parameters. If the code has raised, only the last two follow.

    Code that writes to parameters works on copies, which become the parameters' values when it is done. So other calls
    never see half of the changes, and open passes keep their values. Earlier runs tell which code writes; the first run
    of any method but `forward` counts as writing. A parameter of more than `COPY_AT_MOST` bytes that no open pass has
    saved is written to in place.

    Args:
        parameter_locks: Guards the parameters.
        hosted: The module.
        training: Whether the bound copy is in training mode; None for the mode of the module.
        code: Name of the method or function that runs.
        nested: Whether the call has bound a module before, or is nested in another request.
        recorded: Whether the call is recorded for backward.

    Attributes:
        hosted: The module.
        code: Name of the method or function that runs.
        parameter_locks: Guards the parameters.
        internals: The tensors of the module besides its parameters.
        parameters: Its parameters.
        changes: For each parameter, the number of writes to it when the call began.
        tensors: For each parameter, the tensor that replaces it in the call.
        originals: By index of the parameter, the tensors that the call got copies of.
        leaves: For each parameter, what a record keeps of it.
        steps: For each parameter, the number of its steps when the call began.
        watches: For each leaf, the watch of its storage; None if the storage belongs to the call.
        leaf_watch: Collects what the call does to the leaves.
        aliases: Names of attributes that the call has set to memory of a parameter.
        returned: The changes to the bound copy; set by `give_back`.
    """

    returned: Returned

    def __init__(
        self,
        parameter_locks: ParameterLocks,
        hosted: HostedObject,
        training: bool | None,
        code: str,
        nested: bool,
        recorded: bool,
    ) -> None:
        assert hosted.bound_copies is not None
        self.hosted = hosted
        self.code = code
        self.parameter_locks = parameter_locks
        self.internals = hosted.bound_copies.internals
        self.parameters = list(hosted.parameters.values())
        self._training = training
        self._recorded = recorded
        self._run = (code, training)
        self._stack: ExitStack | None = None
        copies = code not in hosted.readers
        if code in hosted.writers or not self.internals.is_free(self._run):
            copies = self._take_turn(nested) or copies
        self._reading = parameter_locks.reading(self.parameters, hosted.parameter_states, nested)
        try:
            self._reading.__enter__()
        except BaseException:
            self._leave()
            raise
        try:
            self._borrow(self._reading, copies)
        except BaseException:
            self._reading.__exit__(None, None, None)
            self._leave()
            raise

    def _take_turn(self, nested: bool) -> bool:
        """Waits until no other call changes the same tensors; returns whether this call may write to parameters."""
        self._stack = ExitStack()
        with ExitStack() as stack:
            if not self.internals.is_free(self._run):
                stack.enter_context(self.internals.turn(self.parameter_locks, self._run, nested))
            writes = self.code in self.hosted.writers
            if writes:
                stack.enter_context(self.parameter_locks.stepping(self.hosted.parameter_states))
            self._stack = stack.pop_all()
        return writes

    def _leave(self) -> None:
        if self._stack is not None:
            self._stack.close()

    def _borrow(self, reading: Reading, copies: bool) -> None:
        """Replaces parameters by leaves in a bound copy, and notes the state before the call."""
        hosted = self.hosted
        assert hosted.bound_copies is not None
        self.tensors = reading.leaves
        self.changes = reading.changes
        self.watches: list[Watch | None] = [Watch(pin) for pin in reading.pins]
        self.originals: dict[int, torch.Tensor] = {}
        if copies:
            self._copy(reading.leaves)
        self._holds: list[Hold | LateRun] = []
        self.leaves = [
            Leaf(*each, self._holds)
            for each in zip(hosted.parameter_refs, self.parameters, reading.leaves, strict=True)
        ]
        self.steps = reading.steps
        self.leaf_watch = LeafWatch(reading.leaves)
        self.aliases: list[str] = []
        self._bound_copy = hosted.bound_copies.lend(self._training, self.parameters, reading.leaves)
        self._found = found = self.internals.found()
        self._kept: Found | None = None
        self._versions: list[int] = []
        self._historic: set[int] = set()
        if found.tensors:
            self._versions = [tensor._version for tensor in found.tensors]
            self._historic = {id(tensor) for tensor in found.tensors if tensor.requires_grad}

    def _copy(self, leaves: list[torch.Tensor]) -> None:
        """Replaces leaves that the code may write to by copies."""
        for i, leaf in enumerate(leaves):
            watch = self.watches[i]
            assert watch is not None
            if leaf.numel() * leaf.element_size() <= COPY_AT_MOST or watch.pin.saved:
                self.originals[i] = leaf
                leaves[i], self.watches[i] = stand_in(self.parameters[i], copied=True), None

    @property
    def module(self) -> nn.Module:
        """The bound copy's module."""
        return self._bound_copy.module

    @property
    def storages(self) -> set[int]:
        """Addresses of the memory of the leaves."""
        return {tensor.untyped_storage().data_ptr() for tensor in self.tensors}

    def parameter_behind(self, leaf: torch.Tensor) -> str | None:
        """The dotted name of the parameter that a leaf of this call replaces."""
        return next((ref.parameter for ref, _, tensor, *_ in self.leaves if tensor is leaf and ref is not None), None)

    def private_ids(self) -> set[int]:
        """`id()` of the objects that belong to this call: the leaves, and the parts of the bound copy."""
        return self._bound_copy.private_ids()

    @property
    def uses_others(self) -> bool:
        """Whether the graph of the call may reach leaves that are not parameters of the module, as far as is known."""
        return self.hosted.uses_others or any(each.requires_grad for each in self._found.tensors)

    def kept(self) -> Found:
        """The tensors besides the parameters that outlive the call, as they are at its end."""
        tensors, is_all = self.internals.found()
        for change in self._bound_copy.changes():
            is_all &= tensors_below(change.value, tensors, MOST)
        self._kept = found = Found([*tensors, *self.internals.buffers()], is_all)
        return found

    @property
    def saved(self) -> list[torch.Tensor]:
        """The tensors besides the parameters that a backward needs copies of, because other calls may change them."""
        plain = self._found.tensors if self.internals.changing else []
        return [*plain, *self.internals.buffers()]

    def hold(self) -> None:
        """Keeps the parameters pinned until the call's graph is freed, because code other than torch has kept them."""
        self._holds.append(Hold(self.parameter_locks, [watch.pin for watch in self.watches if watch is not None]))

    def give_back(self) -> None:
        """Unbinds the copy and ends the read of the parameters, because the code has ended."""
        assert self.hosted.bound_copies is not None
        try:
            changes = self._bound_copy.changes()
            self._has_set = bool(changes)
            self.aliases = [each.name for each in changes if self._lies_within(each.value)]
            self.leaf_watch.note(self.module, self._lies_within)
            if self.originals:
                self.leaf_watch.touched = list(range(len(self.tensors)))
            leaves_tensors = bool(changes or self._kept is None or self._kept.tensors)
            self.returned = returned = self.hosted.bound_copies.take_back(
                self._training, self._bound_copy, self._historic, leaves_tensors
            )
            self.internals.note_run(self._run, self._found, self._versions, returned.changed)
            self.internals.is_remembered |= returned.held
            self._written = [i for i in self.leaf_watch.touched if self._is_written(i)]
            if self._recorded and returned.late:
                self._holds.append(LateRun(self._bound_copy, str(self.hosted)))
            if self._recorded and returned.held:
                self.hold()
        finally:
            self._reading.__exit__(None, None, None)

    def _lies_within(self, value: Any) -> bool:
        tensors: list[torch.Tensor] = []
        tensors_below(value, tensors, MOST)
        leaves = set(map(id, self.tensors))
        return any(is_within(each, self.tensors) for each in tensors if id(each) not in leaves)

    def settle(self, raised: bool) -> None:
        """Applies the changes of the code to the parameters, after `give_back`.

        Changes that it made before it raised count, as they do locally.

        Args:
            raised: Whether the code has raised.

        Raises:
            InvalidArgumentError: A leaf has another shape or dtype than its parameter, or memory of another tensor.
            RuntimeError: It has written to a parameter that other calls have changed meanwhile.
        """
        watch = self.leaf_watch
        try:
            watch.hand_on_attributes(self.parameters, self.internals, self._historic)
            if watch.touched:
                self._take_over(raised)
            self.hosted.readers.add(self.code)
        finally:
            self._leave()
            for i in watch.touched:
                let_go(self.tensors[i])
        self._note_whether_clean(raised)

    def _note_whether_clean(self, raised: bool) -> None:
        """Has later calls of this kind run on a view, if this one has changed nothing."""
        views, returned = self.hosted.views, self.returned
        if views is None:
            return
        is_free = self.internals.is_free(self._run) and not self.internals.ends_histories
        changed = returned.changed or returned.failed or returned.remembered or not returned.whole
        is_same = not (changed or returned.held or returned.late or self._has_set or self.leaf_watch.touched)
        views.note((self.code, self._training, self._recorded), is_free and is_same and not raised)

    def _take_over(self, raised: bool) -> None:
        if self._written:
            self.hosted.writers.add(self.code)
            self._apply(self._written, raised)
        for i in self.leaf_watch.touched:
            if self.leaf_watch.has_set_requires_grad(i):
                self.parameter_locks.set_requires_grad([self.parameters[i]], self.tensors[i].requires_grad)

    def _is_written(self, i: int) -> bool:
        """Whether the call has written to the leaf of parameter `i`."""
        leaf = self.tensors[i]
        if is_written(leaf) or self.leaf_watch.is_moved(i):
            return True
        # Through numpy, for example. Only inconsistent steps write to the original meanwhile.
        original = self.originals.get(i)
        if original is None or self.hosted.parameter_states[i].changes != self.changes[i]:
            return False
        return not torch.equal(writes.bytes_of(original), writes.bytes_of(leaf))

    def _apply(self, places: list[int], raised: bool) -> None:
        """Applies the values that the call has written to the leaves of these parameters.

        If it has raised, values that other calls have written meanwhile stay, without an error.
        """
        self._check_kinds(places)
        moved = []
        for i in places:
            watch = self.watches[i]
            if watch is not None and not self.leaf_watch.is_moved(i):
                # Written in place: the values are there already, unless a step has moved the parameter meanwhile.
                self.parameter_locks.note_written(watch.pin)
                self.hosted.parameter_states[i].writes += 1
                watch.seen += 1
                if self.parameters[i].data_ptr() == self.leaf_watch.pointer(i):
                    continue
            moved.append(i)
        states = [self.hosted.parameter_states[i] for i in moved]
        if any(state.changes != self.changes[i] for i, state in zip(moved, states, strict=True)):
            if raised:
                return
            raise RuntimeError(
                f"{self.code} has written to parameters of {self.hosted} that others have changed at the same time; "
                "theirs were kept. Call it again: it will have the parameters for itself"
            )
        parameters = [self.parameters[i] for i in moved]
        with self.parameter_locks.writing(parameters, states, consistent=True):
            writes.write(parameters, [self.tensors[i].detach() for i in moved], self._kept_tensors())

    def _check_kinds(self, places: list[int]) -> None:
        for i in places:
            tensor, parameter = self.tensors[i], self.parameters[i]
            if tensor.shape != parameter.shape or tensor.dtype != parameter.dtype:
                raise refusals.misshapen(self, i)
            if self.leaf_watch.is_moved(i):
                self._check_memory(i)

    def _check_memory(self, i: int) -> None:
        others = [tensor for tensor in self.tensors if tensor is not self.tensors[i]]
        owner = writes.taken_memory(self.tensors[i], others, self._kept_tensors())
        if owner:
            raise refusals.shared(self, i, owner)

    def _kept_tensors(self) -> list[torch.Tensor]:
        """All tensors that the module keeps now besides its parameters."""
        return [*self.internals.found().tensors, *self.internals.buffers()]

    def name(self, i: int) -> str:
        """The dotted name of a parameter."""
        return list(self.hosted.parameters)[i]
