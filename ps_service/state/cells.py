"""Cells: one per hosted parameter, so that a step never changes numbers that a pass still needs.

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
from typing import Final

import torch
from torch.nn import Parameter
from torch.utils.weak import WeakIdKeyDictionary

from ps_service.state.stand_ins import stand_in
from ps_wire.errors import DeadlineExceededError
from ps_wire.limits import MIB
from ps_wire.locks import ReportingLock
from ps_wire.scopes import current_scope, waiting

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
        # A list, because its `append` and `pop` are atomic: see `Ledger.free`.
        self._saves: list[None] = []

    @property
    def saved(self) -> int:
        """How many open graphs have saved it."""
        return len(self._saves)


class Cell:
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


class WouldWait(Exception):
    """A thread that must not wait would have to."""


class Ledger:
    """Knows the cells of all parameters of an owner, and holds the one lock that guards their counts."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._cells = WeakIdKeyDictionary()
        self._here = threading.local()

    def cell(self, parameter: Parameter) -> Cell:
        """The cell of a parameter, however many objects share it."""
        with self._changed:
            cell: Cell | None = self._cells.get(parameter)
            if cell is None:
                cell = self._cells[parameter] = Cell()
            return cell

    def knows(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is a hosted parameter itself, and not what stands for one."""
        with self._changed:
            return self._cells.get(tensor) is not None

    @contextmanager
    def hurry(self) -> Iterator[None]:
        """While the block runs, this thread does not wait.

        Raises:
            WouldWait: It would have to; nothing has been changed.
        """
        self._here.hurried = True
        try:
            yield
        finally:
            self._here.hurried = False

    def take_time(self) -> None:
        """Ends this thread's hurry: code of others is about to run, which must not be stopped halfway."""
        self._here.hurried = False

    @contextmanager
    def alone(self, lock: ReportingLock) -> Iterator[None]:
        """Holds a lock.

        Raises:
            WouldWait: Another thread has it, and this one is in a hurry.
            DeadlineExceededError: The caller's time was up before others had let go of it.
        """
        if not lock.acquire(blocking=False):
            if self._is_hurried:
                raise WouldWait
            scope = current_scope.get()
            left = None if scope is None else scope.within(None)
            if not lock.acquire(seconds=left):
                raise DeadlineExceededError("others were changing the same until the time was up")
        try:
            yield
        finally:
            lock.release()

    @property
    def _is_hurried(self) -> bool:
        return getattr(self._here, "hurried", False)

    def _wait(self, seconds: float | None = None) -> None:
        if self._is_hurried:
            raise WouldWait
        with waiting:
            self._changed.wait(seconds)

    @contextmanager
    def reading(
        self, parameters: Sequence[Parameter], cells: Sequence[Cell], nested: bool = False
    ) -> Iterator[Reading]:
        """Pins the parameters while the block runs; waits for a consistent step in progress.

        Args:
            parameters: What will be read.
            cells: Their cells.
            nested: Whether the same call reads something already. Then it does not wait for a step that may be waiting
                for that, but only for one that writes.
        """
        with self._changed:
            while any(cell.writing or (cell.claimed and not nested) for cell in cells):
                self._wait()
            pins = [cell.pin for cell in cells]
            for pin in pins:
                pin.reading += 1
            leaves = [stand_in(parameter) for parameter in parameters]
            steps = [cell.steps for cell in cells]
            changes = [cell.changes for cell in cells]
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
    def stepping(self, cells: Sequence[Cell]) -> Iterator[None]:
        """Lets one at a time change these parameters: an optimizer, each of which needs their `.grad`, or hosted code.

        Raises:
            DeadlineExceededError: The caller's time was up before others had done so.
        """
        scope = current_scope.get()
        with self._changed:
            while any(cell.stepped for cell in cells):
                left = None if scope is None else scope.within(None)
                if left is not None and left <= LEAST_SECONDS:
                    raise DeadlineExceededError("others were changing the same parameters until the time was up")
                self._wait(left)
            for cell in cells:
                cell.stepped = True
        try:
            yield
        finally:
            with self._changed:
                for cell in cells:
                    cell.stepped = False
                self._changed.notify_all()

    @contextmanager
    def writing(self, parameters: Sequence[Parameter], cells: Sequence[Cell], consistent: bool) -> Iterator[None]:
        """Lets the block write the parameters in place.

        Args:
            parameters: What will be written.
            cells: Their cells.
            consistent: Whether open passes and running forwards must not see it.
        """
        if not consistent:
            for cell in cells:
                cell.changes += 1
            yield
            return
        with self._changed:
            while any(cell.claimed for cell in cells):
                self._wait()
            for cell in cells:
                cell.claimed = True
        try:
            with self._changed:
                self._await_readers(parameters, cells)
                for cell in cells:
                    cell.writing = True
                    cell.changes += 1
                pinned = [i for i, cell in enumerate(cells) if cell.pin.reading or cell.pin.saved]
            for i in pinned:
                # A new storage behind the same Parameter object: optimizers know parameters by identity.
                parameters[i].data = parameters[i].data.clone()
                cells[i].pin = Pin()
            yield
        finally:
            with self._changed:
                for cell in cells:
                    cell.claimed = cell.writing = False
                self._changed.notify_all()

    def _await_readers(self, parameters: Sequence[Parameter], cells: Sequence[Cell]) -> None:
        """Waits for forwards that merely read what is costly to copy, but no longer than copying takes."""
        began = time.monotonic()
        while waited_for := [each for each in map(_copied_bytes, parameters, cells) if each]:
            left = began + min(sum(waited_for) * COPY_SECONDS_PER_BYTE, LONGEST_WAIT_SECONDS) - time.monotonic()
            if left <= 0:
                return
            self._wait(left)


def _copied_bytes(parameter: Parameter, cell: Cell) -> int:
    """What of a large parameter would have to be copied only because forwards are reading it, in bytes."""
    nbytes = parameter.numel() * parameter.element_size()
    return nbytes if cell.pin.reading and not cell.pin.saved and nbytes > COPY_AT_MOST else 0
