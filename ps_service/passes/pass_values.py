"""Gives a module the parameters' values of a pass back while code of the module runs in its backward."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

import torch

from ps_service.hosting.turns import Turn
from ps_wire.errors import ContextLostError, InvalidArgumentError
from ps_wire.numerics.random import Seeded

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from types import TracebackType

    from ps_service.passes.binding import Binding


class _Swapped:
    """Gives parameters their memory of an earlier time inside a block, with its version. `are_written` tells whether
    the block has written to one."""

    def __init__(self, bound: Binding) -> None:
        self._parameters = list(bound.parameters)
        self._states = bound.hosted.parameter_states
        self._data = [each.data for each in self._parameters]
        self._versions = [each._version for each in self._parameters]
        self._lock = bound.parameter_locks.lock
        self.are_written = False
        self._marks: list[tuple[int, int]] = []
        self._present: list[tuple[int, torch.Tensor, int, torch.Tensor | None]] = []

    def _counts(self) -> list[tuple[int, int]]:
        """For each parameter, the version of its memory, and the number of its writes by steps."""
        return [(each._version, state.changes) for each, state in zip(self._parameters, self._states, strict=True)]

    def __enter__(self) -> None:
        for i, parameter in enumerate(self._parameters):
            if parameter.data_ptr() != self._data[i].data_ptr():
                state, data = self._states[i], parameter.data
                self._present.append((i, data, parameter._version, state.visible))
                with self._lock:
                    state.visible = data if state.visible is None else state.visible
                    _set(parameter, self._data[i], self._versions[i])
        self._marks = self._counts()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Steps that open passes may see do not wait for the turn.
        self.are_written |= any(
            now != before and changes == before_changes
            for (now, changes), (before, before_changes) in zip(self._counts(), self._marks, strict=True)
        )
        present, self._present = self._present, []
        for i, data, version, visible in present:
            with self._lock:
                _set(self._parameters[i], data, version)
                self._states[i].visible = visible


def _set(parameter: torch.Tensor, data: torch.Tensor, version: int) -> None:
    parameter.data = data
    torch._C._autograd._unsafe_set_version_counter((parameter,), (version,))


class PassValues:
    """The values of a module's parameters in one pass. Steps move the parameters instead of writing to them.

    Inside its block, the module has them, and the mode of the call, and no call or step has the module: hooks,
    recomputations and functions of hosted code find what they found in the forward. If the call has a seed, they draw
    random numbers from a generator of their own, to which `torch.utils.checkpoint` gives the state of the call's.
    """

    def __init__(self, bound: Binding, mode: AbstractContextManager[None]) -> None:
        self._name = str(bound.hosted)
        self._swapped = _Swapped(bound)
        self._turns = bound.hosted.turns
        self._tokens = [state.pin.token for state in bound.hosted.parameter_states]
        self._turn: Turn | None = None
        self._mode = mode
        self._random: AbstractContextManager[object] = nullcontext() if Seeded.current() is None else Seeded(0)

    def __enter__(self) -> None:
        self._turn = Turn(self._turns, nested=True, around=(self._mode, self._swapped))
        self._turn.begin()
        self._random.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        turn, self._turn = self._turn, None
        assert turn is not None
        self._random.__exit__(kind, error, trace)
        turn.end()
        if turn.is_lost and error is None:
            raise lost(self._name, "a backward")
        if self._swapped.are_written and error is None:
            raise InvalidArgumentError(
                f"code of {self._name} that runs in a backward has written to a parameter: it has the values of its "
                "pass there, and others would not see the write. Write to parameters in a call"
            )


def lost(name: str, code: str) -> ContextLostError:
    """The error for a call that others did not wait for."""
    return ContextLostError(
        f"{code} of {name} took so long that others have gone on: it may have seen the values of two steps. Run the "
        "pass again"
    )
