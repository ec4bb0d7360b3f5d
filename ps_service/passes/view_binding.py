"""One ordinary module while one call runs on a view of it."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from torch.autograd.graph import increment_version

from ps_service.hosting.contents import ABSENT
from ps_service.hosting.histories import has_open_history
from ps_service.hosting.internals import Found
from ps_service.hosting.leaves import is_written
from ps_service.hosting.replacing import Replacing
from ps_service.hosting.structure import tensors_below
from ps_service.parameters.state import readers_of
from ps_service.passes.binding import Binding

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from ps_service.hosting.objects import HostedObject
    from ps_service.hosting.views import Call
    from ps_service.parameters.locks import ParameterLocks
    from ps_wire.errors import InvalidArgumentError, PsError


class ViewBinding(Binding):
    """A view of a module, which other calls use at the same time. `storages` are the addresses of its leaves' memory.
    The construction waits for a consistent step that writes. `give_back` undoes it."""

    def __init__(self, parameter_locks: ParameterLocks, hosted: HostedObject, kind: Call, nested: bool) -> None:
        super().__init__(parameter_locks, hosted, kind)
        # What calls have set on the view; None until the code has ended.
        self._changes: Sequence[tuple[nn.Module, str, Any]] | None = None
        self._leaves_histories = False
        self._touched: Sequence[int] = ()
        self._overtaken: set[int] = set()
        views, turns = self.views, self.views.turns
        with parameter_locks.lock:
            while turns.writing or (turns.claimed and not nested):
                parameter_locks.wait()
            self._view, self._shared = views.begin(kind[1])
            self._begun = self._shared.current
            self.steps = list(map(_steps, hosted.parameter_states))
        self.module = self._view.module
        self.leaves = self._begun.leaves
        self.storages = self._begun.storages

    def private_ids(self) -> set[int]:
        return self._view.private_ids()

    def kept(self) -> Found:
        """Notes what the code, which has ended, has changed; returns the tensors besides the parameters that stay."""
        tensors, is_all = self.internals.found()
        self._leaves_histories = any(map(_grad_fn, tensors)) and any(map(has_open_history, tensors))
        self._changes = self._view.changes()
        for _, _, value in self._changes:
            is_all &= tensors_below(value, tensors)
        return Found(tensors, is_all)

    def finds_parameters(self) -> None:
        self.views.is_ordinary = False  # later calls run on the module itself
        self.uses_others = True  # the gradients of this call go to the parameters, too

    def give_back(self) -> bool:
        """Ends the read of the parameters, because the code has ended. Later calls find the attributes that it has set,
        and run on the module itself if it has changed anything. Returns whether there is something to `settle`."""
        with self.parameter_locks.lock:
            try:
                # Before the view gets other leaves for the next call.
                self._touched = self._begun.touched()
                changes = self._view.changes() if self._changes is None else self._changes
                if not (self._touched or changes or self.has_set or self._leaves_histories):
                    return False
                self.views.refuse(self._view, self.kind)
                self._shared.dropped.update(self._touched)
                self._overtaken = set(filter(self._begun.is_overtaken, self._touched))
                for i in self._touched:
                    if is_written(self.leaves[i].tensor) and not self._begun.is_moved(i):
                        state = self.hosted.parameter_states[i]
                        for readers in readers_of([state]):
                            readers.note_written(state)
                if self._leaves_histories:
                    self.internals.end_histories(())
                if changes:
                    self._failed = self._take_over(changes)
                return True
            finally:
                self.views.end(self._view)
                self.parameter_locks.notify()

    def settle(self, raised: bool) -> None:
        for i in self._touched:
            self._failed = self._take_over_leaf(i) or self._failed
        super().settle(raised)

    def _take_over_leaf(self, i: int) -> PsError | None:
        """Applies what calls have done to a leaf; returns the error for what is refused."""
        failed: PsError | None = None
        leaf, parameter = self.leaves[i].tensor, self.parameters[i]
        state = self.hosted.parameter_states[i]
        if leaf._backward_hooks or leaf._post_accumulate_grad_hooks:
            failed = self.hooked(i)
        if leaf.grad is not None:
            leaf.grad = None
            failed = self.accumulated(i)
        is_moved = self._begun.is_moved(i)
        if is_moved:
            others = [each.tensor for each in self.leaves if each.tensor is not leaf]
            misplaced = self.misplaced(i, leaf, parameter, others)
            if misplaced is not None:
                return misplaced
            self.hosted.writers.add(self.code)
            with self.parameter_locks.writing([parameter], [state], consistent=True):
                parameter.data.copy_(leaf.detach())
            increment_version(leaf)  # open passes that have saved it would find the new values
            state.writes += 1
            state.rewritten()
        elif is_written(leaf):
            self.hosted.writers.add(self.code)
            # Open passes that have saved the leaf, or that of another module, need the values from before.
            increment_version(leaf)
            self.parameter_locks.note_written(state.pin)
            state.writes += 1
            state.rewritten()
        if i in self._overtaken and (is_moved or is_written(leaf)):
            failed = self.overtaken(i)
        if leaf.requires_grad is not parameter.requires_grad:
            self.parameter_locks.set_requires_grad([parameter], leaf.requires_grad)
        return failed

    def _take_over(self, changes: Sequence[tuple[nn.Module, str, Any]]) -> InvalidArgumentError | None:
        """Gives the module the attributes that calls have set; returns the error for what is refused."""
        if any(not name for _, name, _ in changes):
            return self.restructured()
        leaves = {id(leaf.tensor): leaf.parameter for leaf in self.leaves}
        known = {**leaves, **{id(made): original for made, original in self._view.modules}}
        ends = {*known, *map(id, known.values())}
        parts = Replacing(lambda part: known.get(id(part), part), everywhere=True, ends=ends)
        for original, name, value in changes:
            if self._is_alias(value, leaves):
                return self.aliased(name)
            if value is ABSENT:
                original.__dict__.pop(name, None)
            else:
                original.__dict__[name] = parts.of(self.internals.without_history(value))
        self.internals.learn()
        return None


_steps: Final = attrgetter("steps")
_grad_fn: Final = attrgetter("grad_fn")
