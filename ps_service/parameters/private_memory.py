"""Gives parameters memory of their own while code runs that may write to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from ps_service.parameters.state import Pin, readers_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager
    from types import TracebackType

    from ps_service.parameters.state import ParameterState


class _Taken(NamedTuple):
    """The parameter at position `i` while it has memory of its own at the address `made`: its memory before, with the
    pin of that and what others read, and its version and the number of writes by others at the beginning."""

    i: int
    data: torch.Tensor
    pin: Pin
    made: int
    version: int
    changes: int
    visible: torch.Tensor | None


class PrivateMemory:
    """Gives parameters memory of their own inside a block, with the same values.

    So others never see half of what the block writes, and open passes keep their values, also where the block writes
    unseen by torch, through numpy for example. If it has not written, the parameters get their former memory back;
    `written` has the positions of those that it has written to. Parameters larger than `most_bytes` are only copied if
    an open pass has saved them. What a block has written is dropped if it `is_lost`, because it may not have ended.
    """

    def __init__(
        self,
        parameters: Sequence[torch.Tensor],
        states: Sequence[ParameterState],
        lock: AbstractContextManager[object],
        most_bytes: int,
        is_lost: Callable[[], bool],
    ) -> None:
        self.written: list[int] = []
        self._parameters = parameters
        self._states = states
        self._lock = lock
        self._most_bytes = most_bytes
        self._is_lost = is_lost
        self._taken: list[_Taken] = []

    def __enter__(self) -> None:
        for i, (parameter, state) in enumerate(zip(self._parameters, self._states, strict=True)):
            if parameter.numel() * parameter.element_size() <= self._most_bytes or state.pin.saved:
                data, pin, own, visible = parameter.data, state.pin, parameter.data.clone(), state.visible
                with self._lock:
                    state.visible = data if visible is None else visible
                    parameter.data, state.pin = own, Pin()
                taken = _Taken(i, data, pin, own.data_ptr(), parameter._version, state.changes, visible)
                self._taken.append(taken)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        taken, self._taken = self._taken, []
        for each in taken:
            parameter, state = self._parameters[each.i], self._states[each.i]
            is_written = not self._is_lost() and _is_written(parameter, each)
            with self._lock:
                state.visible = each.visible
                if state.changes != each.changes:
                    pass  # others have written to its own memory meanwhile
                elif is_written:
                    state.changes += 1
                    self.written.append(each.i)
                else:
                    parameter.data, state.pin = each.data, each.pin
                    continue
                for readers in readers_of([state]):
                    readers.note_moved()


def _is_written(parameter: torch.Tensor, taken: _Taken) -> bool:
    if parameter._version != taken.version or parameter.data_ptr() != taken.made:
        return True
    return not have_same_bytes(parameter, taken.data)


def have_same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of one shape and dtype hold the same bytes; so NaN equals itself."""
    return torch.equal(_bytes(one), _bytes(other))


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)
