"""The parameters of a module while code runs on the module itself, and what that does to them."""

from __future__ import annotations

from contextlib import contextmanager
from sys import getrefcount
from typing import TYPE_CHECKING, NamedTuple

import torch

from ps_service.parameters.locks import COPY_AT_MOST
from ps_service.parameters.state import UNSAVED, Pin, readers_of
from ps_service.passes.saved_tensors import Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ps_service.parameters.state import ParameterState
    from ps_service.passes.binding import Binding
    from ps_service.passes.saved_tensors import Pinned
    from ps_wire.errors import InvalidArgumentError


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

    If it `is_unknown` whether code writes to them, it gets memory of its own for them, with the same values. So others
    never see half of what it writes, and open passes keep their values, also where it writes unseen by torch, through
    numpy for example. A parameter that it has not written to gets its former memory back. Very large ones are only
    copied if an open pass has saved them. What code has written is dropped if it `is_lost`: it may not have ended.

    `watches` has the watch of each parameter's storage; it is another list each time that the block begins. `saved` are
    the parameters that autograd has saved since then. `written` tells whether the code has written to a parameter, and
    `failed` is the error for what is refused.
    """

    def __init__(self, bound: Binding, is_unknown: bool, is_lost: Callable[[], bool]) -> None:
        self.watches: list[Watch] = []
        self.written = False
        self.failed: InvalidArgumentError | None = None
        self.saved: list[Pinned] = []
        self._bound = bound
        self._states = bound.hosted.parameter_states
        self._is_unknown = is_unknown
        self._is_lost = is_lost
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
            is_saved = getrefcount(state.pin.token) > UNSAVED
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
            if is_changed and not self._is_lost():
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
