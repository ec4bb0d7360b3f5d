"""Parameter states: one per hosted parameter, so that a step never changes numbers that a pass still needs.

A forward reads parameters through leaves that share their storage. While it runs, and for as long as an open context
saved a parameter for its backward, that storage is pinned. A `consistent` step (the default) first moves a pinned
parameter to fresh storage and then writes there: open passes stay exact, and only what was really saved is copied.
Very large parameters that are merely being read (an embedding look-up saves nothing) are not copied at once: the step
first waits as long as the copy itself would take. Most readings are over by then; a long evaluation is not, and holds
up others no longer than that. An `inconsistent` step writes in place, whoever reads, as Hogwild does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import torch
from torch.nn import Parameter
from torch.utils.weak import WeakIdKeyDictionary

from ps_service.parameters.leaves import stand_in
from ps_wire.errors import DeadlineExceededError
from ps_wire.limits import MIB
from ps_wire.runtime.scopes import current_scope, waiting

if TYPE_CHECKING:
    from ps_wire.runtime.locks import ReportingLock

COPY_AT_MOST = 8 * MIB
"""A parameter larger than this, in bytes, is waited for before it is copied while forwards read it."""

COPY_SECONDS_PER_BYTE: Final = 1e-9
"""How long copying takes on a busy machine. A step waits that long for the readers of a large parameter: then waiting
and copying together never take more than twice what the better of the two would have taken."""

LONGEST_WAIT_SECONDS: Final = 0.25
"""The most that a step waits for readers, and lets in no others meanwhile, however large the parameter is."""


LEAST_SECONDS: Final = 0.001
"""What a scope gives when its time is up."""


class Pin:
    """Counts who still needs one storage of a parameter.

    Attributes:
        reading: Forwards that run.
        written: How often code has written to the storage although it was not its own.
    """

    __slots__ = ("_saves", "reading", "written")

    def __init__(self) -> None:
        self.reading = 0
        self.written = 0
        # A list, because its `append` and `pop` are atomic: see `ParameterLocks.free`.
        self._saves: list[None] = []

    @property
    def saved(self) -> int:
        """How many open graphs have saved it."""
        return len(self._saves)


class ParameterState:
    """The reading and writing of one parameter.

    Attributes:
        pin: Who needs the storage that the parameter has now.
        stepped: Whether an optimizer has the parameter's `.grad`.
        claimed: Whether a consistent step will write next: it waits for calls that read already, and lets in no other.
        writing: Whether that step has begun to write.
        steps: How many steps have been applied to it.
        changes: How often it has been written to, by steps and by all else.
    """

    __slots__ = ("changes", "claimed", "pin", "stepped", "steps", "writing")

    def __init__(self) -> None:
        self.pin = Pin()
        self.stepped = False
        self.claimed = False
        self.writing = False
        self.steps = 0
        self.changes = 0


class Reading:
    """One forward's view of some parameters, all of them from between two steps.

    Attributes:
        leaves: What stands for each parameter: a fresh autograd leaf on the parameter's storage.
        pins: The pin of each parameter's storage.
        steps: How many steps each parameter has had.
        changes: How often each parameter has been written to.
    """

    __slots__ = ("changes", "leaves", "pins", "steps")

    def __init__(self, leaves: list[torch.Tensor], pins: list[Pin], steps: list[int], changes: list[int]) -> None:
        self.leaves = leaves
        self.pins = pins
        self.steps = steps
        self.changes = changes


class WouldBlock(Exception):
    """A thread that must not wait would have to."""


class ParameterLocks:
    """Knows the parameter states of all parameters of an owner, and holds the one lock that guards their counts."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._states = WeakIdKeyDictionary()
        self._here = threading.local()

    def state(self, parameter: Parameter) -> ParameterState:
        """The parameter state of a parameter, however many objects share it."""
        with self._changed:
            state: ParameterState | None = self._states.get(parameter)
            if state is None:
                state = self._states[parameter] = ParameterState()
            return state

    def knows(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is a hosted parameter itself, and not what stands for one."""
        with self._changed:
            return self._states.get(tensor) is not None

    def forbid_blocking(self) -> None:
        """From now on this thread raises `WouldBlock` where it would have to wait, before anything has been changed."""
        self._here.nonblocking = True

    def allow_blocking(self) -> None:
        """This thread may wait again. Called before hosted code runs, which must not be stopped halfway."""
        self._here.nonblocking = False

    @contextmanager
    def nonblocking(self) -> Iterator[None]:
        """Forbids blocking while the block runs.

        Raises:
            WouldBlock: This thread would have to wait; nothing has been changed.
        """
        self.forbid_blocking()
        try:
            yield
        finally:
            self.allow_blocking()

    @contextmanager
    def alone(self, lock: ReportingLock) -> Iterator[None]:
        """Holds a lock.

        Raises:
            WouldBlock: Another thread has it, and this one is in a hurry.
            DeadlineExceededError: The caller's time was up before others had let go of it.
        """
        if not lock.acquire(blocking=False):
            if self._is_nonblocking:
                raise WouldBlock
            scope = current_scope.get()
            left = None if scope is None else scope.within(None)
            if not lock.acquire(seconds=left):
                raise DeadlineExceededError("others were changing the same until the time was up")
        try:
            yield
        finally:
            lock.release()

    @property
    def _is_nonblocking(self) -> bool:
        return getattr(self._here, "nonblocking", False)

    def _wait(self, seconds: float | None = None) -> None:
        if self._is_nonblocking:
            raise WouldBlock
        with waiting:
            self._changed.wait(seconds)

    @contextmanager
    def reading(
        self, parameters: Sequence[Parameter], states: Sequence[ParameterState], nested: bool = False
    ) -> Iterator[Reading]:
        """Pins the parameters while the block runs; waits for a consistent step in progress.

        Args:
            parameters: What will be read.
            states: Their parameter states.
            nested: Whether the same call reads something already. Then it does not wait for a step that may be waiting
                for that, but only for one that writes.
        """
        with self._changed:
            while any(state.writing or (state.claimed and not nested) for state in states):
                self._wait()
            pins = [state.pin for state in states]
            for pin in pins:
                pin.reading += 1
            leaves = [stand_in(parameter) for parameter in parameters]
            steps = [state.steps for state in states]
            changes = [state.changes for state in states]
        try:
            yield Reading(leaves, pins, steps, changes)
        finally:
            with self._changed:
                for pin in pins:
                    pin.reading -= 1
                self._changed.notify_all()

    def save(self, pin: Pin) -> None:
        """An open context needs this storage for its backward."""
        with self._changed:
            pin._saves.append(None)

    def free(self, pin: Pin) -> None:
        """Undoes `save`. May be called by the garbage collector, at any moment and in any thread.

        It takes no lock: the thread that collects may hold another, and who holds this one may wait for that.
        """
        pin._saves.pop()

    def note_written(self, pin: Pin) -> None:
        """Code has written to a storage in place: backwards that have saved it must not use it."""
        with self._changed:
            pin.written += 1

    def set_requires_grad(self, parameters: Sequence[Parameter], requires_grad: bool) -> None:
        """Freezes parameters, or unfreezes them, for the calls that begin later."""
        with self._changed:
            for parameter in parameters:
                parameter.requires_grad_(requires_grad)

    @contextmanager
    def stepping(self, states: Sequence[ParameterState]) -> Iterator[None]:
        """Lets one at a time change these parameters: an optimizer, each of which needs their `.grad`, or hosted code.

        Raises:
            DeadlineExceededError: The caller's time was up before others had done so.
        """
        scope = current_scope.get()
        with self._changed:
            while any(state.stepped for state in states):
                left = None if scope is None else scope.within(None)
                if left is not None and left <= LEAST_SECONDS:
                    raise DeadlineExceededError("others were changing the same parameters until the time was up")
                self._wait(left)
            for state in states:
                state.stepped = True
        try:
            yield
        finally:
            with self._changed:
                for state in states:
                    state.stepped = False
                self._changed.notify_all()

    @contextmanager
    def writing(
        self, parameters: Sequence[Parameter], states: Sequence[ParameterState], consistent: bool
    ) -> Iterator[None]:
        """Lets the block write the parameters in place.

        Args:
            parameters: What will be written.
            states: Their parameter states.
            consistent: Whether open passes and running forwards must not see it.
        """
        if not consistent:
            for state in states:
                state.changes += 1
            yield
            return
        with self._changed:
            while any(state.claimed for state in states):
                self._wait()
            for state in states:
                state.claimed = True
        try:
            with self._changed:
                self._await_readers(parameters, states)
                for state in states:
                    state.writing = True
                    state.changes += 1
                pinned = [i for i, state in enumerate(states) if state.pin.reading or state.pin.saved]
            for i in pinned:
                # A new storage behind the same Parameter object: optimizers know parameters by identity.
                parameters[i].data = parameters[i].data.clone()
                states[i].pin = Pin()
            yield
        finally:
            with self._changed:
                for state in states:
                    state.claimed = state.writing = False
                self._changed.notify_all()

    def _await_readers(self, parameters: Sequence[Parameter], states: Sequence[ParameterState]) -> None:
        """Waits for forwards that merely read what is costly to copy, but no longer than copying takes."""
        began = time.monotonic()
        while waited_for := [each for each in map(_copied_bytes, parameters, states) if each]:
            left = began + min(sum(waited_for) * COPY_SECONDS_PER_BYTE, LONGEST_WAIT_SECONDS) - time.monotonic()
            if left <= 0:
                return
            self._wait(left)


def _copied_bytes(parameter: Parameter, state: ParameterState) -> int:
    """What of a large parameter would have to be copied only because forwards are reading it, in bytes."""
    nbytes = parameter.numel() * parameter.element_size()
    return nbytes if state.pin.reading and not state.pin.saved and nbytes > COPY_AT_MOST else 0
