"""Gives a module the parameters' values of a pass back while code of the module runs in its backward."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from ps_service.hosting.turns import Turn
from ps_wire.errors import ContextLostError, InvalidArgumentError
from ps_wire.numerics.random import Seeded
from ps_wire.numerics.seeds import of_backward

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from ps_service.hosting.objects import HostedObject
    from ps_service.parameters.locks import ParameterLocks
    from ps_service.parameters.state import ParameterState


class PassNumbers:
    """The random numbers that code of a call draws in its backward, if the call was in a seeded block.

    They come from a generator of their own, with a seed derived from that of the block. `torch.utils.checkpoint` gives
    it the state of the block's generator while it recomputes.
    """

    hosted = None

    def __init__(self, block: Seeded) -> None:
        self._random = Seeded(of_backward(block.seed))

    def found(self) -> AbstractContextManager[object]:
        """The block in which the code draws them."""
        return self._random


class PassValues:
    """The values of a module's parameters in one pass. Steps move the parameters instead of writing to them.

    Inside the block `found`, the module has them, and the mode of the call, and no call or step has the module: hooks,
    recomputations and functions of hosted code find what they found in the forward.
    """

    def __init__(
        self, hosted: HostedObject, locks: ParameterLocks, mode: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self.hosted = hosted
        self._name = str(hosted)
        self._parameters = hosted.views.parameters
        self._states = hosted.parameter_states
        self._data = [each.data for each in self._parameters]
        self._versions = [each._version for each in self._parameters]
        self._tokens = [state.pin.token for state in self._states]
        self._lock = locks.lock
        self._turns = hosted.views.turns
        self._mode = mode
        self._are_written = False

    @contextmanager
    def found(self) -> Iterator[None]:
        """The block. Code that has written to a parameter in it is refused."""
        turn = Turn(self._turns, nested=True, around=(self._mode, self._swapped))
        turn.begin()
        try:
            yield
        finally:
            turn.end()
        if turn.is_lost:
            raise lost(self._name, "a backward")
        if self._are_written:
            raise InvalidArgumentError(
                f"code of {self._name} that runs in a backward has written to a parameter: it has the values of its "
                "pass there, and others would not see the write. Write to parameters in a call"
            )

    @contextmanager
    def _swapped(self) -> Iterator[None]:
        """Gives the parameters their memory of the pass, with its version."""
        present: list[tuple[torch.Tensor, ParameterState, torch.Tensor, int, torch.Tensor | None]] = []
        for i, (parameter, state) in enumerate(zip(self._parameters, self._states, strict=True)):
            if parameter.data_ptr() != self._data[i].data_ptr():
                data = parameter.data
                present.append((parameter, state, data, parameter._version, state.visible))
                with self._lock:
                    state.visible = data if state.visible is None else state.visible
                    _set(parameter, self._data[i], self._versions[i])
        before = self._counts()
        try:
            yield
        finally:
            for (now, changes), (version, former_changes) in zip(self._counts(), before, strict=True):
                # Steps that open passes may see do not wait for the turn.
                self._are_written |= now != version and changes == former_changes
            for swapped, state, data, version, visible in present:
                with self._lock:
                    _set(swapped, data, version)
                    state.visible = visible

    def _counts(self) -> list[tuple[int, int]]:
        """For each parameter, the version of its memory, and the number of its writes by steps."""
        return [(each._version, state.changes) for each, state in zip(self._parameters, self._states, strict=True)]


def _set(parameter: torch.Tensor, data: torch.Tensor, version: int) -> None:
    parameter.data = data
    torch._C._autograd._unsafe_set_version_counter((parameter,), (version,))


def lost(name: str, code: str) -> ContextLostError:
    """The error for a call that others did not wait for."""
    return ContextLostError(
        f"{code} of {name} took so long that others have gone on: it may have seen the values of two steps. Run the "
        "pass again"
    )
