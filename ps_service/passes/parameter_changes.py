"""The changes that the code of a call on a module itself makes to the parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ps_service.parameters.locks import COPY_AT_MOST
from ps_service.parameters.private_memory import have_same_bytes
from ps_service.parameters.state import Pin, readers_of
from ps_service.passes.saved_tensors import Watch

if TYPE_CHECKING:
    from types import TracebackType

    import torch

    from ps_service.passes.binding import Binding
    from ps_service.passes.saved_tensors import Pinned
    from ps_wire.errors import InvalidArgumentError


class ParameterChanges:
    """Notices inside a block what code does to parameters, and afterwards tells those who have read them.

    If it `compares`, the parameters that open passes have saved are compared: writes through numpy or `.data` do not
    show otherwise. If the code `is_writer`, all are, but for very large ones.

    Attributes:
        watches: The watch of each parameter's storage; another list each time that the block begins.
        written: Whether the code has written to one.
        failed: The error for what is refused; None if there is nothing.
        saved: The parameters that autograd has saved since the block began.
    """

    def __init__(self, bound: Binding, compares: bool, is_writer: bool) -> None:
        self.watches: list[Watch] = []
        self.written = False
        self.failed: InvalidArgumentError | None = None
        self.saved: list[Pinned] = []
        self._bound = bound
        self._compares = compares
        self._is_writer = is_writer

    def __enter__(self) -> None:
        states = self._bound.hosted.parameter_states
        self.watches = [Watch(state.pin) for state in states]
        self._data: list[torch.Tensor] = []
        self._before: list[tuple[int, int, bool]] = []
        self._values: dict[int, torch.Tensor] = {}
        saved = set().union(*(readers.saved() for readers in readers_of(states))) if self._compares else set()
        for i, parameter in enumerate(self._bound.parameters):
            self._data.append(parameter.data)
            self._before.append((parameter.data_ptr(), parameter._version, parameter.requires_grad))
            is_compared = self._is_writer and parameter.nbytes <= COPY_AT_MOST
            if is_compared or (self._compares and (states[i].pin.saved or id(states[i]) in saved)):
                self._values[i] = parameter.detach().clone()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each in self.saved:
            each.settle()
        self.saved.clear()
        for i, (parameter, before) in enumerate(zip(self._bound.parameters, self._before, strict=True)):
            pointer, version, trained = before
            if parameter.grad is not None and not self._bound.hosted.parameter_states[i].stepped:
                parameter.grad = None
                self.failed = self._bound.accumulated(i)
            if parameter._post_accumulate_grad_hooks:
                parameter._post_accumulate_grad_hooks.clear()
                self.failed = self._bound.hooked(i)
            if parameter.data_ptr() != pointer or parameter.shape != self._data[i].shape:
                self._note_moved(i)
            elif parameter._version != version or (
                i in self._values and not have_same_bytes(self._values[i], parameter)
            ):
                self._note_written(i)
            if parameter.requires_grad is not trained:
                self._bound.parameter_locks.set_requires_grad([parameter], parameter.requires_grad)
        self._data, self._values = [], {}

    def _note_written(self, i: int) -> None:
        state = self._bound.hosted.parameter_states[i]
        self._bound.parameter_locks.note_written(state.pin)
        self.watches[i].seen = state.pin.written
        state.writes += 1
        self.written = True
        for readers in readers_of([state]):
            readers.note_written(state)

    def _note_moved(self, i: int) -> None:
        """Notes that the code has given a parameter other memory, or gives it its own memory back."""
        parameter, state = self._bound.parameters[i], self._bound.hosted.parameter_states[i]
        others = [each for each in self._bound.parameters if each is not parameter]
        failed = self._bound.misplaced(i, parameter, self._data[i], others)
        if failed is not None:
            parameter.data, self.failed = self._data[i], failed
            return
        self.written = True
        state.pin = Pin()
        state.changes += 1
        for readers in readers_of([state]):
            readers.note_moved()
