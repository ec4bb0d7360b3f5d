"""The state of one pass on an owner, from its first forward until its trainer ends it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from operator import attrgetter
from typing import TYPE_CHECKING, Final

import torch

from ps_service.group.peers import NOTHING_SAID, NestedPass, Over
from ps_service.memory.held import Held, Share
from ps_service.passes.gradients import Gradient, Gradients, Turn, Unscaled
from ps_service.passes.staleness import FirstReadings
from ps_service.quotas.accounts import NOBODY
from ps_wire.attempts import Attempt
from ps_wire.errors import ContextEndedError, ContextLostError, PsError

if TYPE_CHECKING:
    from ps_service.group.peers import Membership
    from ps_service.parameters.state import ParameterState
    from ps_service.passes.records import Record
    from ps_wire.attempts import Applied
    from ps_wire.refs import CallKey, ContextId

_parameter: Final = attrgetter("parameter")
_NO_OTHERS: Final = nullcontext()

STOPPED: Final = "the owner was stopped while it was open"
"""Why a pass is lost that a checkpoint names as open."""


KILLED: Final = "the owner was killed while it was open"
"""Why a pass is lost that the log names as opened."""


class PassContext:
    """One pass on this owner. Its times are on the clock of `Contexts`; `used` is when a request last used it.

    Its `callers` are the trainer whose pass it is, and owners that were called in the pass. `held` counts the bytes
    that passes of its trainer hold, also for the quotas of who has opened it, whose `account` it has. `attempt` tells
    which steps other attempts of the pass have applied; None if it is not run again. `parts` makes, of the gradients of
    some parameters, by the ids of their tensors, what these have not applied. Once it has ended, what would use it
    raises as `Contexts.find`.
    """

    def __init__(self, id: ContextId, held: Held, now: float = 0.0) -> None:
        self.id = id
        self.held = held
        self.callers: set[bytes] = set()
        self.account = NOBODY
        self.last_staleness = 0
        self.attempt: Attempt | None = None
        self.parts: dict[int, Callable[[torch.Tensor], torch.Tensor]] = {}
        self.began = self.used = now
        # Reentrant, because the garbage collector may free records of the pass, and their tensors, under them.
        self._lock = threading.RLock()
        self._door = threading.RLock()
        self._nested_pass: NestedPass | None = None
        self._records: dict[CallKey, Record] = {}
        # Parameters of tables in which running calls have looked up that have no record yet.
        self._looked_up: list[torch.Tensor] = []
        self._gradients = Gradients(Share(held))
        self._readings = FirstReadings()
        self._ended = False
        self._why_lost = ""

    def begin_attempt(self, applied: Applied, of: tuple[bytes, int] | None = None) -> None:
        """Makes it an attempt of a pass that is run again, of which these steps were applied in any attempt; does
        nothing if it is one already. `of` has the trainer and the number of the run."""
        with self._lock:
            if self.attempt is None:
                self.attempt = Attempt(applied, of)

    def calling(self, membership: Membership, place: tuple[int, ...]) -> AbstractContextManager[None]:
        """Makes the calls of hosted code to other owners, in a block, part of this pass, nested in the calls of these
        numbers."""
        if not membership.joined:
            return _NO_OTHERS
        with self._door:
            if self._ended:
                raise self._over()
            if self._nested_pass is None:
                self._nested_pass = membership.peers.nested_pass(self.id)
            nested_pass = self._nested_pass
        return _NO_OTHERS if nested_pass is None else nested_pass.calling(place)

    @property
    def called(self) -> NestedPass | None:
        """The part of the pass on other owners; None if hosted code has called none."""
        nested_pass = self._nested_pass
        return nested_pass if nested_pass is not None and nested_pass.others() else None

    def add(self, call: CallKey, record: Record) -> None:
        """Keeps a recorded call."""
        with self._lock:
            if self._ended:
                raise self._over()
            self._records[call] = record
            self._readings.note(map(_parameter, record.leaves), record.steps)

    def looks_up(self, parameter: torch.Tensor) -> None:
        """Notes that the code of a call looks up in the table of a parameter, before its record is there."""
        with self._lock:
            if self._ended:
                raise self._over()
            self._looked_up.append(parameter)

    def has_looked_up(self, parameters: Sequence[torch.Tensor]) -> None:
        """Such a call has its record now, or has failed."""
        with self._lock:
            for each in parameters:
                place = next(i for i, other in enumerate(self._looked_up) if other is each)
                del self._looked_up[place]

    def drop(self, call: CallKey) -> None:
        """Forgets a recorded call, of which its caller gets an error."""
        with self._lock:
            self._records.pop(call, None)

    def uses(self, parameter: torch.Tensor) -> bool:
        """Whether a recorded call has used a parameter, or gradients of it have come."""
        with self._lock:
            if any(leaf.parameter is parameter for each in self._records.values() for leaf in each.leaves):
                return True
            return self._gradients.has(parameter) or any(each is parameter for each in self._looked_up)

    def uses_any(self, parameters: Mapping[int, torch.Tensor]) -> bool:
        """The same of one of some parameters, by the ids of their tensors."""
        with self._lock:
            if any(id(leaf.parameter) in parameters for each in self._records.values() for leaf in each.leaves):
                return True
            return any(map(self._gradients.has, parameters.values()))

    def record(self, call: CallKey) -> Record:
        """A recorded call. Without a record for that caller and number, it is a `ContextLostError`."""
        record = self._records.get(call)
        if record is None:
            raise lost_error(self.id, self._why_lost)
        return record

    def accumulate(self, gradients: Sequence[Gradient], turn: Turn | None = None) -> None:
        """Adds gradients from the backward of one call to those of this pass; without a turn, at once."""
        with self._lock:
            if self._ended:
                # The context ended while the backward ran, so its gradients are not needed.
                return
            if turn is not None and not self.callers <= {self.id.trainer}:
                # Gradients of other callers may come in between.
                turn = turn._replace(after=None)
            self._gradients.add(gradients, turn)

    def bring(self, gradients: Sequence[Gradient], steps: Sequence[int]) -> None:
        """Adds gradients that were computed elsewhere, at most one per parameter, with copies of the parameters made
        after so many steps."""
        with self._lock:
            if self._ended:
                raise self._over()
            self._gradients.add(gradients)
            self._readings.note(map(_parameter, gradients), steps)

    def gradients(self) -> list[Gradient]:
        """The gradients of this pass."""
        with self._lock:
            return self._gradients.all()

    @property
    def gradient_bytes(self) -> int:
        """The bytes of the gradients."""
        return self._gradients.nbytes

    def gradients_of(self, parameters: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        """The gradients of some parameters, read at once."""
        with self._lock:
            brought = self._gradients  # first: `end` does not wait for the lock, and drops them after it has ended
            if self._ended:
                raise self._over()
            found = brought.of_each(parameters)
        if self.parts:
            for place, (parameter, gradient) in enumerate(zip(parameters, found, strict=True)):
                if gradient is not None and (part := self.parts.get(id(parameter))) is not None:
                    found[place] = part(gradient)
        return found

    def stepped(self, parameters: Sequence[torch.Tensor], parameter_states: Sequence[ParameterState]) -> int | None:
        """Notes a step of the pass, and returns its staleness."""
        with self._lock:
            staleness = self._readings.staleness(parameters, parameter_states, counts=1)
            self.last_staleness = staleness or 0
            return staleness

    def staleness(self, parameters: Sequence[torch.Tensor], parameter_states: Sequence[ParameterState]) -> int | None:
        """The number of steps since the pass has first read one of some parameters; None if it has read none."""
        with self._lock:
            return self._readings.staleness(parameters, parameter_states)

    def of_each(self, parameters: Sequence[torch.Tensor]) -> list[int | None]:
        """As `FirstReadings.of_each`."""
        with self._lock:
            return self._readings.of_each(parameters)

    def scale(self, parameters: Sequence[torch.Tensor], factor: float) -> None:
        """Multiplies the gradients of some parameters."""
        with self._lock:
            self._gradients.scale(parameters, factor)

    def unscale(self, parameters: Sequence[torch.Tensor], factor: float) -> Unscaled:
        """As `Gradients.unscale`."""
        with self._lock:
            brought = self._gradients
            if self._ended:
                raise self._over()
            return brought.unscale(parameters, factor)

    def end(self, over: Over = NOTHING_SAID, why_lost: str = "") -> None:
        """Frees what the pass held. Does not wait: a backward that still runs frees its part when it is done. `over`
        says which other contexts of its trainer have ended, for the owners that this one has called. `why_lost` is the
        reason if the owner ended it; empty if its trainer did."""
        with self._door:
            self._why_lost = why_lost
            self._ended = True
            nested_pass, self._nested_pass = self._nested_pass, None
        self._records = {}
        self._gradients = Gradients()
        if nested_pass is not None:
            nested_pass.end(over)

    def _over(self) -> PsError:
        return lost_error(self.id, self._why_lost) if self._why_lost else ended_error(self.id)


def ended_error(id: ContextId) -> ContextEndedError:
    """The error for a context that its trainer has ended."""
    return ContextEndedError(f"context {id} has ended: its calls and gradients are gone. Open a new one for a new pass")


def lost_error(id: ContextId, why: str = "") -> ContextLostError:
    """The error for a context that this owner has lost; `why` is part of the message."""
    told = why or "it may have restarted"
    error = ContextLostError(f"this owner does not have the forward pass of context {id} ({told}): run forward again")
    error.drained = why == STOPPED
    return error
