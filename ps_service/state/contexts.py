"""Contexts: what an owner keeps of each pass, from its first forward until its trainer ends it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence, Set
from typing import Final

import torch
from torch.nn import Parameter

from ps_service.state.cells import Cell
from ps_service.state.records import Gradient, Passage, Record, added
from ps_service.state.steps import FirstReadings
from ps_wire.errors import ContextEndedError, ContextLostError
from ps_wire.numbers import SeenNumbers
from ps_wire.refs import CallKey, ContextId

_REMEMBERED: Final = 4096
"""Contexts of one trainer that were ended here while older ones were not; that one still comes then is not expected."""


class Context:
    """One pass on this owner.

    Attributes:
        id: Its name.
        callers: Who uses it here: the trainer whose pass it is, and owners that were called in the pass.
    """

    def __init__(self, id: ContextId) -> None:
        self.id = id
        self.callers: set[bytes] = set()
        self._lock = threading.RLock()
        self._door = threading.Lock()
        self._passage: Passage | None = None
        self._records: dict[CallKey, Record] = {}
        self._gradients: dict[int, Gradient] = {}
        self._own: set[int] = set()
        self._readings = FirstReadings()
        self._ended = False

    def passage(self, open: Callable[[ContextId], Passage | None]) -> Passage | None:
        """What hosted code does elsewhere in this pass.

        Args:
            open: Begins it, when this is the first time.

        Raises:
            ContextEndedError: The context has ended.
        """
        with self._door:
            if self._ended:
                raise _ended(self.id)
            if self._passage is None:
                self._passage = open(self.id)
            return self._passage

    def others(self) -> list[str]:
        """Names of the owners that were called from here in this pass."""
        passage = self._passage
        return [] if passage is None else passage.others()

    def add(self, call: CallKey, record: Record) -> None:
        """Keeps a recorded call.

        Raises:
            ContextEndedError: The context ended while the call ran.
        """
        with self._lock:
            if self._ended:
                raise _ended(self.id)
            self._records[call] = record
            self._readings.note(record.leaves)

    def record(self, call: CallKey) -> Record:
        """A call that was recorded here.

        Raises:
            ContextLostError: There is none of that caller and number.
        """
        with self._lock:
            try:
                return self._records[call]
            except KeyError:
                raise _lost(self.id) from None

    def accumulate(self, gradients: Sequence[Gradient]) -> None:
        """Adds to the parameters' gradients of this pass."""
        with self._lock:
            for gradient in gradients:
                key = id(gradient.parameter)
                held = self._gradients.get(key)
                if held is None:
                    self._gradients[key] = gradient
                elif key in self._own and not held.tensor.is_sparse:
                    held.tensor.add_(gradient.tensor)
                else:
                    # The first gradient may be shared with other nodes of the graph: not to be written to.
                    self._gradients[key] = held._replace(tensor=added(held.tensor, gradient.tensor))
                    self._own.add(key)

    def gradients(self) -> list[Gradient]:
        with self._lock:
            return list(self._gradients.values())

    def gradient(self, parameter: Parameter) -> torch.Tensor | None:
        """The gradient of a parameter, if this pass has brought it one."""
        with self._lock:
            held = self._gradients.get(id(parameter))
            return None if held is None else held.tensor

    def gradients_of(self, parameters: Sequence[Parameter]) -> list[torch.Tensor | None]:
        """The gradients of some parameters, all from one moment.

        Raises:
            ContextEndedError: The context has ended.
        """
        with self._lock:
            held = self._gradients  # one look: `end` does not wait, and puts an empty dict in its place
            if self._ended:
                raise _ended(self.id)
            found = [held.get(id(parameter)) for parameter in parameters]
        return [None if each is None else each.tensor for each in found]

    def stepped(self, parameters: Sequence[Parameter], cells: Sequence[Cell]) -> int | None:
        """A step of the pass has written to parameters; returns its staleness, as `FirstReadings.stepped`."""
        with self._lock:
            return self._readings.stepped(parameters, cells)

    def scale(self, parameters: Sequence[Parameter], factor: float) -> None:
        """Multiplies the gradients of some parameters."""
        with self._lock:
            for parameter in parameters:
                held = self._gradients.get(id(parameter))
                if held is not None:
                    self._gradients[id(parameter)] = held._replace(tensor=held.tensor * factor)
                    self._own.add(id(parameter))

    def end(self) -> None:
        """Lets go of everything the pass held. Does not wait: a backward that still runs frees its part when done."""
        with self._door:
            self._ended = True
            passage, self._passage = self._passage, None
        self._records = {}
        self._gradients = {}
        self._readings = FirstReadings()
        if passage is not None:
            passage.end()


class Contexts:
    """The open contexts of an owner, and which ones have ended. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[ContextId, Context] = {}
        self._ended: dict[bytes, SeenNumbers] = {}
        self._lost: dict[bytes, set[int]] = {}
        # For each owner that calls here: the trainers in whose passes it did.
        self._delegated: dict[bytes, set[bytes]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, id: ContextId) -> bool:
        """Whether a pass is open here."""
        return id in self._open

    def used_by(self, callers: Set[bytes]) -> bool:
        """Whether a pass is open that one of these takes part in here."""
        with self._lock:
            return any(not callers.isdisjoint(context.callers) for context in self._open.values())

    def over(self) -> dict[bytes, tuple[SeenNumbers, set[int]]]:
        """By trainer the passes that it ended, and those that would be lost if the owner stopped now."""
        with self._lock:
            lost = {trainer: set(numbers) for trainer, numbers in self._lost.items()}
            for id in self._open:
                lost.setdefault(id.trainer, set()).add(id.number)
            ended = {trainer: numbers.copy() for trainer, numbers in self._ended.items()}
        return {
            trainer: (ended.get(trainer) or SeenNumbers(_REMEMBERED), lost.get(trainer, set()))
            for trainer in ended.keys() | lost.keys()
        }

    def put_over(self, trainer: bytes, ended: SeenNumbers, lost: set[int]) -> None:
        """Passes of a trainer that this owner had before it started again."""
        with self._lock:
            self._ended[trainer] = SeenNumbers.of(ended.floor, ended.above, most=_REMEMBERED)
            if lost:
                self._lost[trainer] = lost

    def open(self, id: ContextId, caller: bytes = b"") -> Context:
        """The context of that name; opened if this owner has not seen it yet.

        Args:
            id: Its name.
            caller: Who uses it. With the session of the last who does, it is freed.

        Raises:
            ContextEndedError: It has ended.
            ContextLostError: Its first part is gone.
        """
        with self._lock:
            context = self._open.get(id)
            if context is None:
                self._check(id)
                context = self._open[id] = Context(id)
            context.callers.add(caller or id.trainer)
            if caller and caller != id.trainer:
                self._delegated.setdefault(caller, set()).add(id.trainer)
            return context

    def get(self, id: ContextId) -> Context | None:
        """The context of that name, or None if it has not been used on this owner.

        Raises:
            ContextEndedError: It has ended.
            ContextLostError: It was open when the owner stopped.
        """
        with self._lock:
            context = self._open.get(id)
            if context is None:
                self._check(id)
            return context

    def find(self, id: ContextId) -> Context:
        """The context of that name.

        Raises:
            ContextEndedError: It has ended.
            ContextLostError: This owner does not have it.
        """
        context = self.get(id)
        if context is None:
            raise _lost(id)
        return context

    def end(self, id: ContextId) -> None:
        """Ends a context, also one that was never used here: requests of it may still be on their way."""
        with self._lock:
            context = self._open.pop(id, None)
            self._end(id)
        if context is not None:
            context.end()

    def forget(self, trainer: bytes) -> None:
        """Frees everything of a trainer, or of an owner that called in the passes of others, that is gone."""
        with self._lock:
            gone = [self._open.pop(id) for id, each in list(self._open.items()) if self._is_last(trainer, each)]
            for context in gone:
                # A step that comes later must not find nothing to do, and think that it has been done.
                self._end(context.id)
            self._ended.pop(trainer, None)
            self._lost.pop(trainer, None)
            kept = {context.id.trainer for context in gone}
            for other in self._delegated.pop(trainer, set()) - kept:
                if not any(other in others for others in self._delegated.values()):
                    self._ended.pop(other, None)
        for context in gone:
            context.end()

    def _end(self, id: ContextId) -> None:
        self._ended.setdefault(id.trainer, SeenNumbers(_REMEMBERED)).add(id.number)
        self._lost.get(id.trainer, set()).discard(id.number)
        if len(self._ended) > _REMEMBERED:
            del self._ended[next(iter(self._ended))]

    def _is_last(self, trainer: bytes, context: Context) -> bool:
        if context.id.trainer == trainer:
            return True
        if trainer not in context.callers:
            return False
        # Its calls cannot be propagated any more, and who is left learns that when trying.
        context.callers.discard(trainer)
        return not context.callers

    def _check(self, id: ContextId) -> None:
        if id.number in self._ended.get(id.trainer, ()):
            raise _ended(id)
        if id.number in self._lost.get(id.trainer, ()):
            raise _lost(id)


def _ended(id: ContextId) -> ContextEndedError:
    return ContextEndedError(f"context {id} has ended: its calls and gradients are gone. Open a new one for a new pass")


def _lost(id: ContextId) -> ContextLostError:
    return ContextLostError(
        f"this owner does not have the forward pass of context {id} (it may have restarted): run forward again"
    )
