"""Gives a step exclusive access to the parameters that it writes."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from operator import methodcaller
from sys import getrefcount
from typing import TYPE_CHECKING, Final

from ps_service.parameters.state import UNSAVED, readers_of

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from types import TracebackType

    import torch

    from ps_service.parameters.locks import ParameterLocks
    from ps_service.parameters.state import ParameterState, Readers


@dataclass(slots=True, eq=False)
class StepAccess:
    """Lets a block change the gradients and the data of parameters, as one step.

    It does what `ParameterLocks.stepping` and `ParameterLocks.writing` do, one inside the other. Where no step, forward
    or open pass uses the parameters, there is nothing to wait for and nothing to copy: then the lock is taken once
    before the step and once after it. Otherwise the step goes through those two.
    """

    locks: ParameterLocks
    parameters: Sequence[torch.Tensor]
    states: Sequence[ParameterState]
    consistent: bool
    _readers: Collection[Readers] = ()
    _waiting: ExitStack | None = None

    def __enter__(self) -> None:
        """Acquires the parameters. Raises, with nothing changed, `WouldBlock` if it would have to wait, and the thread
        must not, and `DeadlineExceededError` if the caller's deadline passed before others had finished."""
        consistent = self.consistent
        with self.locks.lock:
            for state in self.states:
                pin = state.pin
                is_saved = getrefcount(pin.token) > UNSAVED
                if state.stepped or (consistent and (state.claimed or pin.reading or is_saved)):
                    break
            else:
                all_readers = readers_of(self.states) if consistent else ()
                if not any(map(_is_used, all_readers)):
                    self._readers = all_readers
                    for readers in all_readers:
                        readers.turns.writing += 1
                    for state in self.states:
                        state.stepped = True
                        state.changes += 1
                        if consistent:
                            state.claimed = state.writing = True
                    return
        with ExitStack() as stack:
            stack.enter_context(self.locks.stepping(self.states))
            stack.enter_context(self.locks.writing(self.parameters, self.states, self.consistent))
            self._waiting = stack.pop_all()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            for state in self.states:
                if state.followers:
                    state.tell()
        finally:
            if self._waiting is not None:
                self._waiting.__exit__(kind, error, trace)
            else:
                with self.locks.lock:
                    for readers in self._readers:
                        readers.turns.writing -= 1
                    for state in self.states:
                        state.stepped = False
                        if self.consistent:
                            state.claimed = state.writing = False
                    self.locks.notify()


_is_used: Final = methodcaller("is_used")
