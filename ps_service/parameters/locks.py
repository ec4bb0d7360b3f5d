"""The locks under which calls read parameters and steps write them, so that passes keep the data that they need.

A forward reads parameters through leaves that share their storage. While it runs, and for as long as an open context
has saved a parameter for its backward, that storage is pinned. A `consistent` step (the default) moves a pinned
parameter to fresh storage and writes there. If a very large one is only being read, it first waits for as long as the
copy would take. An `inconsistent` step writes in place, even while others read, as Hogwild does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

import torch
from torch.utils.weak import WeakIdKeyDictionary

from ps_service.parameters.state import ParameterState, Pin, Readers, readers_of
from ps_wire.errors import DeadlineExceededError
from ps_wire.limits import MIB
from ps_wire.runtime.locks import ReportingLock
from ps_wire.runtime.scopes import LEAST_SECONDS_LEFT, current_scope, waiting

COPY_AT_MOST = 8 * MIB
"""Size in bytes above which a step waits for a parameter's readers before it copies it."""

COPY_SECONDS_PER_BYTE: Final = 1e-9
"""Seconds per byte of copying on a busy machine. A step waits for the readers of a large parameter for as long as the
copy would take, so that waiting and copying together take at most twice the time of the better choice."""

LONGEST_WAIT_SECONDS: Final = 0.25
"""Most seconds that a step waits for readers, and blocks new ones, however large the parameter is."""


class _Stops(threading.local):
    count = 0


class WouldBlock(BaseException):
    """A thread that must not block would have to wait. Hosted code that handles exceptions lets it pass; for code that
    does not, `stops` counts those of this thread."""

    stops: Final = _Stops()

    def __init__(self) -> None:
        super().__init__()
        self.stops.count += 1


class ThisThread(threading.local):
    """Whether a thread raises `WouldBlock` where it would have to wait, before anything has been changed. Not while
    hosted code runs, which must not be stopped halfway."""

    nonblocking = False


class StepLock(ReportingLock):
    """The lock of an optimizer, which others may hold for long. A block raises `WouldBlock` if another thread holds it
    and this thread must not block, and `DeadlineExceededError` if the caller's deadline passes before it is free."""

    __slots__ = ("_this_thread",)

    def __init__(self, this_thread: ThisThread) -> None:
        super().__init__()
        self._this_thread = this_thread

    def __enter__(self) -> None:
        if self._lock.acquire(blocking=False):
            return
        if self._this_thread.nonblocking:
            raise WouldBlock
        scope = current_scope.get()
        if not self.acquire(seconds=None if scope is None else scope.within(None)):
            raise DeadlineExceededError("the lock was held by others until the deadline")


class Reading(NamedTuple):
    """What a read has found of some parameters: a fresh leaf on the storage of each, the pins of these storages, and
    the counts of the states."""

    leaves: list[torch.Tensor]
    pins: list[Pin]
    steps: list[int]
    changes: list[int]


class ParameterLocks:
    """The states of all parameters of an owner, and the one lock that guards their counts, which is held for
    microseconds. `changed` is a condition on it, notified when a reader or a step has ended. The owner
    `has_other_leaves` if a tensor was hosted that is trained and of no module."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.has_other_leaves = False
        self._waiting = 0
        self._states = WeakIdKeyDictionary()
        self.this_thread = ThisThread()

    def state(self, parameter: torch.Tensor) -> ParameterState:
        """The state of a parameter; the same for all objects that share it."""
        with self.lock:
            state: ParameterState | None = self._states.get(parameter)
            if state is None:
                state = self._states[parameter] = ParameterState()
            return state

    def lends(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is a parameter of a hosted module itself, not a leaf that replaces one."""
        return any(state.of_module for state in self.known([tensor]))

    def known(self, tensors: Sequence[torch.Tensor]) -> list[ParameterState]:
        """The states of those tensors that are hosted parameters."""
        with self.lock:
            found = [self._states.get(tensor) for tensor in tensors]
        return [state for state in found if state is not None]

    def wait(self, seconds: float | None = None) -> None:
        """Waits until a reader or a step has ended; `lock` must be held. Raises `WouldBlock` if this thread must not
        wait."""
        if self.this_thread.nonblocking:
            raise WouldBlock
        self._waiting += 1
        try:
            with waiting:
                self.changed.wait(seconds)
        finally:
            self._waiting -= 1

    def notify(self) -> None:
        """Wakes the threads that wait for a reader or a step to end. `lock` must be held."""
        if self._waiting:
            self.changed.notify_all()

    @contextmanager
    def reading(
        self, parameters: Sequence[torch.Tensor], states: Sequence[ParameterState], nested: bool = False
    ) -> Iterator[Reading]:
        """Pins parameters while a block runs, so that no consistent step lies between them. It waits for one that is in
        progress. If it is `nested` in another read of the same caller, a step may be waiting for that one, so this one
        waits only for steps that have begun to write."""
        with self.lock:
            while any(state.writing or (state.claimed and not nested) for state in states):
                self.wait()
            leaves = [
                state.visible_of(each).data.requires_grad_(each.requires_grad)
                for each, state in zip(parameters, states, strict=True)
            ]
            pins = [state.pin for state in states]
            found = Reading(leaves, pins, [each.steps for each in states], [each.changes for each in states])
            for pin in pins:
                pin.reading += 1
        try:
            yield found
        finally:
            with self.lock:
                for pin in pins:
                    pin.reading -= 1
                self.notify()

    def note_written(self, pin: Pin) -> None:
        """Notes an in-place write to a storage: backwards that have saved it must not use it."""
        with self.lock:
            pin.written += 1

    def set_requires_grad(self, parameters: Sequence[torch.Tensor], requires_grad: bool) -> None:
        """Freezes or unfreezes parameters for calls that begin later."""
        with self.lock:
            for parameter in parameters:
                parameter.requires_grad_(requires_grad)
            if requires_grad and not all(map(self.lends, parameters)):
                self.has_other_leaves = True
            for readers in readers_of(self.known(parameters)):
                readers.note_moved()

    @contextmanager
    def stepping(self, states: Sequence[ParameterState]) -> Iterator[None]:
        """Excludes other optimizers and hosted code from changing these parameters, or their `.grad`, meanwhile. Raises
        `DeadlineExceededError` if the caller's deadline passes before others have finished."""
        scope = current_scope.get()
        with self.lock:
            for readers in readers_of(states):
                readers.turns.await_calls(that_write=True)
            while any(state.stepped for state in states):
                left = None if scope is None else scope.within(None)
                if left is not None and left <= LEAST_SECONDS_LEFT:
                    raise DeadlineExceededError("others were changing the same parameters until the deadline")
                self.wait(left)
            for state in states:
                state.stepped = True
        try:
            yield
        finally:
            with self.lock:
                for state in states:
                    state.stepped = False
                self.notify()

    @contextmanager
    def writing(
        self,
        parameters: Sequence[torch.Tensor],
        states: Sequence[ParameterState],
        consistent: bool,
        counts: bool = True,
    ) -> Iterator[None]:
        """Lets the block write the parameters in place. If it is consistent, open passes and running forwards do not
        see it. Without `counts`, the block itself counts what it writes."""
        if not consistent:
            for state in states:
                state.changes += 1
            yield
            return
        with self.lock:
            while any(state.claimed for state in states):
                self.wait()
            for state in states:
                state.claimed = True
            all_readers, begun = readers_of(states), 0
            for readers in all_readers:
                readers.turns.claimed += 1
        try:
            with self.lock:
                self._await_readers(parameters, states, all_readers)
                begun = 1
                for readers in all_readers:
                    readers.turns.writing += 1
                for state in states:
                    state.writing = True
                    state.changes += counts
                pinned = [i for i, uses in enumerate(_uses(states, all_readers)) if any(uses)]
            for i in pinned:
                # New storage in the same Parameter object: optimizers identify parameters by object.
                parameters[i].data = parameters[i].data.clone()
                states[i].pin = Pin()
            yield
        finally:
            with self.lock:
                for readers in all_readers:
                    readers.turns.claimed -= 1
                    readers.turns.writing -= begun
                    readers.note_moved()
                for state in states:
                    state.claimed = state.writing = False
                self.notify()

    def _await_readers(
        self, parameters: Sequence[torch.Tensor], states: Sequence[ParameterState], all_readers: Iterable[Readers]
    ) -> None:
        """Waits for calls on modules themselves, and for forwards that only read parameters that are costly to copy,
        for these at most for the time of the copy."""
        began = time.monotonic()
        while True:
            while any([readers.turns.await_calls() for readers in all_readers]):
                pass  # nested calls may have begun meanwhile
            waited_for = _copied_bytes(parameters, states)
            if not waited_for:
                return
            left = began + min(waited_for * COPY_SECONDS_PER_BYTE, LONGEST_WAIT_SECONDS) - time.monotonic()
            if left <= 0:
                return
            self.wait(left)


def _copied_bytes(parameters: Sequence[torch.Tensor], states: Sequence[ParameterState]) -> int:
    """Bytes of large parameters that may be copied only because forwards are reading them. What those on views refer to
    cannot be told from what open graphs have saved until they have ended."""
    large = [
        (state, nbytes)
        for parameter, state in zip(parameters, states, strict=True)
        if (nbytes := parameter.numel() * parameter.element_size()) > COPY_AT_MOST
    ]
    if not large:
        return 0
    large_states = [state for state, _ in large]
    uses = _uses(large_states, readers_of(large_states))
    return sum(
        nbytes for (state, nbytes), (is_read, _) in zip(large, uses, strict=True) if is_read and not state.pin.saved
    )


def _uses(states: Sequence[ParameterState], all_readers: Iterable[Readers]) -> list[tuple[bool, bool]]:
    """For each parameter, whether a call reads it now, and whether an open graph or other code needs it as it is."""
    running = {readers for readers in all_readers if readers.running}
    saved = set().union(*(readers.saved() for readers in all_readers))
    return [
        (
            bool(state.pin.reading) or any(each() in running for each in state.readers),
            bool(state.pin.saved) or id(state) in saved,
        )
        for state in states
    ]
