"""A module itself while one call has it."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from functools import partial
from operator import gt
from sys import getrefcount
from typing import TYPE_CHECKING, Any

from torch import nn

from ps_service.hosting.contents import Contents, Dicts
from ps_service.hosting.leaves import Leaf
from ps_service.hosting.structure import is_atom
from ps_service.hosting.turns import Turn
from ps_service.memory.addresses import storage_of
from ps_service.parameters.uses import references
from ps_service.passes.binding import Binding
from ps_service.passes.parameter_changes import ParameterChanges
from ps_service.passes.pass_values import PassValues, lost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from ps_service.hosting.internals import Found
    from ps_service.hosting.objects import HostedObject
    from ps_service.hosting.views import Call
    from ps_service.parameters.locks import ParameterLocks


class TurnBinding(Binding):
    """A module while a call runs on it and has it to itself.

    What the code does to the module is done: attributes, containers, hooks and caches are those of Python. What
    autograd saves of a parameter is an alias of its memory, and steps move the parameters that are saved. Code that
    runs for the first time has memory of its own for the parameters, because it may write to them in ways that do not
    show.

    `turn` is that of the call, and `changes` notices what the code does to the parameters.
    """

    def __init__(self, parameter_locks: ParameterLocks, hosted: HostedObject, kind: Call, nested: bool) -> None:
        super().__init__(parameter_locks, hosted, kind)
        code, _, self._recorded = kind
        self.module: nn.Module = hosted.value
        self._parts = list(self.module.modules())
        self._set: list[tuple[int, str, Any]] | None = None
        exclusive = self._writing if code in hosted.writers else None
        self.turn = Turn(hosted.views.turns, nested, self._around(), exclusive, is_patient=not code)
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

    def _around(self) -> list[Callable[[], AbstractContextManager[None]]]:
        """Makes what is entered whenever the call gets the module."""
        is_unsettled = self.code not in self.hosted.readers or self.views.asks_for(self.kind)
        is_unknown = is_unsettled and bool(self.code) and self.code not in self.hosted.writers
        self.changes = ParameterChanges(self, is_unknown, lambda: self.turn.is_lost)
        around = [self._mode, self.internals.quiet] if self.internals.norm_locks else [self._mode]
        return [*around, self.changes.noticed]

    @property
    def _mode(self) -> Callable[[], AbstractContextManager[None]]:
        """Makes what has the module in the mode of the call."""
        training = self.kind[1]
        return nullcontext if training is None else partial(_in_mode, self.module, self._parts, training)

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
        if any(each._backward_hooks for each in self.parameters) or any(map(_has_hooks, self._parts)):
            self.hold()
        self._references = self._count_references()

    def _count_references(self) -> list[int]:
        """The references of Python to the parts and parameters of the module; nothing if no backward will follow."""
        if not self._recorded:
            return []
        dicts = [each._parameters for each in self._parts]
        return [*map(getrefcount, self._parts), *map(getrefcount, dicts), *references(self.parameters)]

    @property
    def storages(self) -> set[int]:
        """Addresses of the memory of the parameters."""
        return set(map(storage_of, self.parameters))

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


def _has_hooks(part: nn.Module) -> bool:
    return bool(part._backward_hooks or part._backward_pre_hooks)


@contextmanager
def _in_mode(module: nn.Module, parts: Sequence[nn.Module], training: bool) -> Iterator[None]:
    """Has a module with these parts in one mode inside a block. Then each part has its former mode again."""
    before = [each.training for each in parts]
    if all(each is training for each in before) and not any(map(_has_own_train, parts)):
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


def _has_own_train(part: nn.Module) -> bool:
    return type(part).train is not nn.Module.train
