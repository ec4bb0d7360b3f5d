"""A module itself while one call has it, and what the code of the call does to its parameters."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from functools import partial
from operator import gt
from sys import getrefcount
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from ps_service.hosting.contents import Contents, Dicts
from ps_service.hosting.leaves import Leaf, references
from ps_service.hosting.structure import is_atom
from ps_service.hosting.turns import Turn
from ps_service.parameters.locks import COPY_AT_MOST
from ps_service.parameters.state import Pin, readers_of
from ps_service.passes.binding import Binding
from ps_service.passes.pass_values import PassValues, lost
from ps_service.passes.saved_tensors import Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from ps_service.hosting.internals import Found
    from ps_service.hosting.objects import HostedObject
    from ps_service.hosting.views import Call
    from ps_service.parameters.locks import ParameterLocks
    from ps_service.parameters.state import ParameterState
    from ps_service.passes.saved_tensors import Pinned
    from ps_wire.errors import InvalidArgumentError


class TurnBinding(Binding):
    """A module while a call runs on it and has it to itself. `turn` is that of the call, and `changes` notices what the
    code does to the parameters.

    What the code does to the module is done: attributes, containers, hooks and caches are those of Python. What
    autograd saves of a parameter is an alias of its memory, and steps move the parameters that are saved.
    """

    def __init__(self, parameter_locks: ParameterLocks, hosted: HostedObject, kind: Call, nested: bool) -> None:
        super().__init__(parameter_locks, hosted, kind)
        code, training, self._recorded = kind
        self.module: nn.Module = hosted.value
        self._parts = list(self.module.modules())
        # Makes what has the module in the mode of the call.
        self._mode: Callable[[], AbstractContextManager[None]] = nullcontext
        if training is not None:
            self._mode = partial(_in_mode, self.module, self._parts, training)
        self._set: list[tuple[int, str, Any]] | None = None
        is_unsettled = code not in hosted.readers or self.views.asks_for(kind)
        is_unknown = is_unsettled and bool(code) and code not in hosted.writers
        self.changes = ParameterChanges(self, is_unknown)
        quiet = [self.internals.quiet] if self.internals.norm_locks else []
        around = [self._mode, *quiet, self.changes.noticed]
        exclusive = self._writing if code in hosted.writers else None
        self.turn = Turn(hosted.views.turns, nested, around, exclusive, is_patient=not code)
        self.turn.begin()
        self.leaves = [
            Leaf(ref, parameter, parameter)
            for ref, parameter in zip(hosted.parameter_refs, self.parameters, strict=True)
        ]
        self.steps = [state.steps for state in hosted.parameter_states]
        try:
            self._note_before()
        except BaseException:
            self.turn.end()
            raise

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """What code that writes to parameters needs besides its turn, as steps do."""
        states = self.hosted.parameter_states
        with (
            self.parameter_locks.stepping(states),
            self.parameter_locks.writing(self.parameters, states, consistent=True, counts=False),
        ):
            yield

    def _note_before(self) -> None:
        self._contents = Contents(self.module) if self.views.asks_for(self.kind) else None
        self._attributes = Dicts([each.__dict__ for each in (*self._parts, *self.parameters)])
        self._structure = Dicts([each for part in self._parts for each in (part._parameters, part._modules)])
        self._historic = {id(tensor) for tensor in self.internals.found().tensors if tensor.requires_grad}
        self.uses_others = self.uses_others or bool(self._historic)
        hooks = [each._backward_hooks or each._backward_pre_hooks for each in self._parts]
        if any(hooks) or any(each._backward_hooks for each in self.parameters):
            self.hold()
        self._references = self._count_references()

    def _count_references(self) -> list[int]:
        """The references of Python to the parts and parameters of the module; nothing if no backward will follow."""
        if not self._recorded:
            return []
        dicts = [each._parameters for each in self._parts]
        return [*map(getrefcount, self._parts), *map(getrefcount, dicts), *references(self.parameters)]

    def kept(self) -> Found:
        """The tensors besides the parameters that outlive the call."""
        self._learn()
        return self.internals.found()

    def hold(self) -> None:
        if self._recorded and not self.is_held:
            self.is_held, self.values = True, PassValues(self.hosted, self.parameter_locks, self._mode)

    def give_back(self) -> bool:
        """Ends the turn, because the code has ended. There is something to `settle`."""
        try:
            if not self.turn.is_lost:
                self._end_code()
        finally:
            self.turn.end()
            self._failed = self.changes.failed or self._failed
            if self.changes.written:
                self.hosted.writers.add(self.code)
            elif not self.turn.is_lost:
                self.hosted.readers.add(self.code)
            if self.turn.is_lost:
                self._failed = lost(str(self.hosted), self.code or "a call")
        return True

    def _end_code(self) -> None:
        if not self._structure.are_same():
            self._structure.restore()
            self._failed = self.restructured()
        changes, own = self._learn(), set(map(id, self.parameters))
        for _, name, value in changes:
            if self._is_alias(value, own):
                self._failed = self.aliased(name)
        if any(i >= len(self._parts) for i, _, _ in changes) or any(each._backward_hooks for each in self.parameters):
            self.views.examine_again()
        self.internals.end_histories(self._historic)
        if self._contents is not None:
            is_changed = changes or self.has_set or self.is_held or self._failed is not None
            self.views.note(self.kind, is_clean=not is_changed and self._contents.are_same())
        if any(map(gt, self._count_references(), self._references)):
            self.hold()  # code that is left behind, such as a hook of the graph, may use them

    def _learn(self) -> list[tuple[int, str, Any]]:
        """The attributes that the code has set, once the internals know of them. The code has ended."""
        if self._set is None:
            self._set = [] if self._attributes.are_same() else self._attributes.changes()
            if not all(is_atom(value) for _, _, value in self._set):
                self.internals.learn()
        return self._set

    def settle(self, raised: bool) -> None:
        # These refer to each other; what they hold must not wait for the garbage collector.
        del self.turn, self.changes
        super().settle(raised)


@contextmanager
def _in_mode(module: nn.Module, parts: Sequence[nn.Module], training: bool) -> Iterator[None]:
    """Has a module with these parts in one mode inside a block. Then each part has its former mode again."""
    before = [each.training for each in parts]
    has_own_train = any(type(each).train is not nn.Module.train for each in parts)
    if not has_own_train and all(each is training for each in before):
        yield
        return
    module.train(training)
    try:
        yield
    finally:
        # Code of the module's own `train()` runs, too.
        module.train(before[0])
        for part, each in zip(parts, before, strict=True):
            if part.training is not each:
                part.training = each


class _Lent(NamedTuple):
    """The memory that a parameter had before it got memory of its own, with what belongs to that."""

    data: torch.Tensor
    pin: Pin
    visible: torch.Tensor | None
    changes: int


_Before = tuple[torch.Tensor, int, bool, torch.Tensor | None, _Lent | None]
"""A parameter when a block began: its data, its version, whether it is trained, the values that those at the end are
compared with, if there are any, and its former memory, if it got memory of its own."""


class ParameterChanges:
    """Notices inside a block what code does to parameters, and afterwards tells those who have read them.

    If it `is_unknown` whether code writes to them, it gets memory of its own for them, so that others never see half of
    what it writes, and open passes keep their values, also where it writes unseen by torch. A parameter that it has not
    written to gets its former memory back. Very large ones are only copied if an open pass has saved them. What code
    has written is dropped if its turn is lost: it may not have ended.

    `watches` has the watch of each parameter's storage; it is another list each time that the block begins. `saved` are
    the parameters that autograd has saved since then. The code has `written` to a parameter, or has `failed`.
    """

    def __init__(self, bound: TurnBinding, is_unknown: bool) -> None:
        self.watches: list[Watch] = []
        self.written = False
        self.failed: InvalidArgumentError | None = None
        self.saved: list[Pinned] = []
        self._bound = bound
        self._states = bound.hosted.parameter_states
        self._is_unknown = is_unknown
        self._is_writer = bound.code in bound.hosted.writers

    @contextmanager
    def noticed(self) -> Iterator[None]:
        """The block, which may be entered again when it has ended."""
        before: list[_Before] = []
        try:
            self._begin(before)
            yield
        finally:
            for saved in self.saved:
                saved.settle()
            self.saved.clear()
            self._end(before)

    def _end(self, before: list[_Before]) -> None:
        changed: list[bool] = []
        try:
            # All of them before the first gets its memory back: one may have that of another.
            changed.extend(self._note(i, each) for i, each in enumerate(before))
        finally:
            for i, (*_, lent) in enumerate(before):
                if lent is not None:
                    self._take_back(i, lent, i >= len(changed) or changed[i])

    def _begin(self, before: list[_Before]) -> None:
        self.watches = []
        # Code without a name never writes to parameters.
        compares = bool(self._bound.code)
        saved = set().union(*(readers.saved() for readers in readers_of(self._states))) if compares else set()
        for parameter, state in zip(self._bound.parameters, self._states, strict=True):
            is_saved = state.pin.saved > 0
            lent = values = None
            if self._is_unknown and (is_saved or parameter.nbytes <= COPY_AT_MOST):
                lent = self._lend(parameter, state)
                values = lent.data
            elif (compares and (is_saved or id(state) in saved)) or (
                self._is_writer and parameter.nbytes <= COPY_AT_MOST
            ):
                values = parameter.detach().clone()
            self.watches.append(Watch(state.pin))
            before.append((parameter.data, parameter._version, parameter.requires_grad, values, lent))

    def _lend(self, parameter: torch.Tensor, state: ParameterState) -> _Lent:
        """Gives a parameter memory of its own."""
        lent, own = _Lent(parameter.data, state.pin, state.visible, state.changes), parameter.data.clone()
        with self._bound.parameter_locks.lock:
            state.visible = lent.data if lent.visible is None else lent.visible
            parameter.data, state.pin = own, Pin()
        return lent

    def _take_back(self, i: int, lent: _Lent, is_changed: bool) -> None:
        """Gives a parameter its former memory back, unless the code has written to it."""
        parameter, state = self._bound.parameters[i], self._states[i]
        with self._bound.parameter_locks.lock:
            state.visible = lent.visible
            if state.changes != lent.changes:
                return  # the code has moved it, or others have written to its own memory meanwhile
            if is_changed and not self._bound.turn.is_lost:
                _note_changed(state)
            else:
                parameter.data, state.pin = lent.data, lent.pin

    def _note(self, i: int, before: _Before) -> bool:
        """Notes what the code has done to a parameter; returns whether it has changed the values."""
        data, version, is_trained, values, _ = before
        bound, parameter = self._bound, self._bound.parameters[i]
        if parameter.grad is not None and not self._states[i].stepped:
            parameter.grad = None
            self.failed = bound.accumulated(i)
        if parameter._post_accumulate_grad_hooks:
            parameter._post_accumulate_grad_hooks.clear()
            self.failed = bound.hooked(i)
        if parameter.data_ptr() != data.data_ptr() or parameter.shape != data.shape:
            is_changed = self._note_moved(i, data)
        else:
            is_changed = parameter._version != version or (
                values is not None and not torch.equal(_bytes(values), _bytes(parameter))
            )
            if is_changed:
                self._note_written(i)
        if parameter.requires_grad is not is_trained:
            bound.parameter_locks.set_requires_grad([parameter], parameter.requires_grad)
        return is_changed

    def _note_written(self, i: int) -> None:
        state = self._states[i]
        self._bound.parameter_locks.note_written(state.pin)
        self.watches[i].seen = state.pin.written
        state.writes += 1
        state.rewritten()
        self.written = True
        for readers in readers_of([state]):
            readers.note_written(state)

    def _note_moved(self, i: int, data: torch.Tensor) -> bool:
        """Notes that the code has given a parameter other memory, or gives it its own back."""
        parameter, state = self._bound.parameters[i], self._states[i]
        others = [each for each in self._bound.parameters if each is not parameter]
        failed = self._bound.misplaced(i, parameter, data, others)
        if failed is not None:
            parameter.data, self.failed = data, failed
            return False
        self.written = True
        state.writes += 1
        state.rewritten()
        state.pin = Pin()
        _note_changed(state)
        return True


def _note_changed(state: ParameterState) -> None:
    state.changes += 1
    for readers in readers_of([state]):
        readers.note_moved()


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of the elements, which are equal for NaN, too."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
