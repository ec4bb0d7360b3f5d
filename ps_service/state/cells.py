"""Cells: one per hosted parameter, so that a step never changes numbers that a pass still needs.

A forward reads parameters through leaves that share their storage. While it runs, and for as long as an open context
saved a parameter for its backward, that storage is pinned. A `consistent` step (the default) first moves a pinned
parameter to fresh storage and then writes there: open passes stay exact, and only what was really saved is copied.
Very large parameters that are merely being read (an embedding look-up saves nothing) are not copied: the step waits
the moment until the reading is over. An `inconsistent` step writes in place, whoever reads, as Hogwild does.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch.nn import Parameter
from torch.utils.weak import WeakIdKeyDictionary

from ps_wire.limits import MIB
from ps_wire.scopes import waiting

COPY_AT_MOST = 8 * MIB
"""A parameter larger than this, in bytes, is waited for rather than copied while forwards read it."""


class Pin:
    """Counts who still needs one storage of a parameter."""

    __slots__ = ("reading", "saved")

    def __init__(self) -> None:
        self.reading = 0
        self.saved = 0


class Cell:
    """The reading and writing of one parameter.

    Attributes:
        pin: Who needs the storage that the parameter has now.
        stepped: Whether an optimizer has the parameter's `.grad`.
        claimed: Whether a consistent step will write next: it waits for calls that read already, and lets in no other.
        writing: Whether that step has begun to write.
        steps: How many steps have been applied to it.
    """

    __slots__ = ("claimed", "pin", "stepped", "steps", "writing")

    def __init__(self) -> None:
        self.pin = Pin()
        self.stepped = False
        self.claimed = False
        self.writing = False
        self.steps = 0


class Reading:
    """One forward's view of some parameters, all of them from between two steps.

    Attributes:
        leaves: What stands for each parameter: a fresh autograd leaf on the parameter's storage.
        pins: The pin of each parameter's storage.
        steps: How many steps each parameter has had.
    """

    __slots__ = ("leaves", "pins", "steps")

    def __init__(self, leaves: list[torch.Tensor], pins: list[Pin], steps: list[int]) -> None:
        self.leaves = leaves
        self.pins = pins
        self.steps = steps


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
    def alone(self, lock: threading.RLock) -> Iterator[None]:
        """Holds a lock.

        Raises:
            WouldWait: Another thread has it, and this one is in a hurry.
        """
        if not lock.acquire(blocking=not self._is_hurried):
            raise WouldWait
        try:
            yield
        finally:
            lock.release()

    @property
    def _is_hurried(self) -> bool:
        return getattr(self._here, "hurried", False)

    def _wait(self) -> None:
        if self._is_hurried:
            raise WouldWait
        with waiting:
            self._changed.wait()

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
            leaves = [_leaf(parameter) for parameter in parameters]
            steps = [cell.steps for cell in cells]
        try:
            yield Reading(leaves, pins, steps)
        finally:
            with self._changed:
                for pin in pins:
                    pin.reading -= 1
                self._changed.notify_all()

    def save(self, pin: Pin) -> None:
        """An open context needs this storage for its backward."""
        with self._changed:
            pin.saved += 1

    def free(self, pin: Pin) -> None:
        """Undoes `save`. May be called by the garbage collector, at any moment and in any thread."""
        with self._changed:
            pin.saved -= 1

    @contextmanager
    def stepping(self, cells: Sequence[Cell]) -> Iterator[None]:
        """Lets one optimizer at a time use the `.grad` of these parameters, of which each has only one."""
        with self._changed:
            while any(cell.stepped for cell in cells):
                self._wait()
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
            yield
            return
        with self._changed:
            while any(cell.claimed for cell in cells):
                self._wait()
            for cell in cells:
                cell.claimed = True
        try:
            with self._changed:
                while any(map(_is_waited_for, parameters, cells)):
                    self._wait()
                for cell in cells:
                    cell.writing = True
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


def _leaf(parameter: Parameter) -> torch.Tensor:
    # `.data`, not `.detach()`: a detached tensor shares the version counter, and torch would then refuse the
    # backward of a pass whose parameters another trainer has stepped, although the numbers it needs are still there.
    return parameter.data.requires_grad_(parameter.requires_grad)


def _is_waited_for(parameter: Parameter, cell: Cell) -> bool:
    """Whether forwards are merely reading what is too large to be copied."""
    nbytes = parameter.numel() * parameter.element_size()
    return bool(cell.pin.reading) and not cell.pin.saved and nbytes > COPY_AT_MOST
