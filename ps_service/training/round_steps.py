"""The steps of an optimizer with a policy: each has the gradients of a round."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

from ps_service.training.parameter_history import ParameterHistory
from ps_service.training.round_gradients import Contribution
from ps_wire.policies import Compensate
from ps_wire.runtime.noop import noop

if TYPE_CHECKING:
    import torch

    from ps_service.parameters.locks import StepLock
    from ps_service.parameters.state import ParameterState
    from ps_service.passes.pass_context import PassContext
    from ps_service.passes.staleness import FirstReadings
    from ps_service.training.reported_values import ReportedValues
    from ps_service.training.round_gradients import RoundGradients
    from ps_wire.policies import Policy


MOST_UNCHANGED: Final = 64
"""How many versions are remembered that have changed nothing."""


Note = Callable[[Any, int, Any], None]
"""As that of `HostedOptimizer`."""


class Stepper(Protocol):
    """What rounds need of their optimizer; see `HostedOptimizer`."""

    number: int
    version: int
    title: str
    parameters: list[torch.Tensor]
    parameter_states: list[ParameterState]
    reported: ReportedValues
    trainers: dict[bytes, None]
    rounds: Any
    lock: StepLock

    def step(self, context: PassContext, note: Note | None = None) -> int:
        """Applies the gradients of a context; returns the version after it. What it steps with is told to `note`."""

    def check(self, gradients: PassContext) -> object:
        """Checks the gradients of a context."""

    def apply(self, gradients: RoundGradients, note: Note | None = None) -> bool:
        """Applies gradients, if there are any, with the lock held. What it steps with is told to `note`."""


class RoundSteps:
    """Steps an optimizer as rounds say, and tells which version a gradient is from."""

    def __init__(self, optimizer: Stepper) -> None:
        self.optimizer = optimizer
        # The last versions that have changed nothing here: of several owners, an owner may have no gradient of a round.
        self._unchanged: deque[int] = deque(maxlen=MOST_UNCHANGED)
        self._history: ParameterHistory | None = None
        # Applies gradients in the place of the optimizer, while its log is replayed.
        self.instead: Callable[[RoundGradients], bool] | None = None

    def forget(self) -> None:
        """The optimizer was removed: drops what would keep tensors until the garbage collector finds the cycle."""
        self.optimizer, self._history = weakref.proxy(self.optimizer), None

    def follow(self, policy: Policy, version: int) -> None:
        """Corrects stale gradients from this version on, if the policy says so. Where it has said the same before, the
        earlier values stay: owners hear of a policy more than once, and not at the same time."""
        stale = getattr(policy, "stale", None)
        if not isinstance(stale, Compensate):
            self._history = None
        elif self._history is None or self._history.strength != stale.lambda_:
            self._begin_history(stale.lambda_)
        else:
            self._history.reach(self.optimizer.version)

    def forget_values(self) -> None:
        """Corrects no gradient that was computed with values of before."""
        if self._history is not None:
            self._begin_history(self._history.strength)

    def _begin_history(self, strength: float) -> None:
        optimizer = self.optimizer
        self._history = ParameterHistory(optimizer.parameters, optimizer.parameter_states, strength)
        self._history.reach(optimizer.version)

    @property
    def compensates(self) -> bool:
        """Whether stale gradients are corrected."""
        return self._history is not None

    def compensated(self, contribution: Contribution, read: int) -> Contribution:
        """A contribution with gradients that are corrected, if the policy says so, by what has changed since their
        trainer has read the parameters; `read` is the version then, for those of which that is all that is known."""
        if self._history is None:
            return contribution
        context = contribution.context
        steps = None if context is None else context.of_each(self.optimizer.parameters)
        return contribution._replace(gradients=self._history.compensated(contribution.gradients, read, steps))

    def apply(
        self,
        gradients: RoundGradients,
        version: int,
        note: Note | None = None,
        prepare: Callable[[], object] = noop,
    ) -> None:
        """Applies the gradients of a round, which were checked: all of them, or, if anything raises, none. `version` is
        that of the optimizer from now on, whatever happens. Raises `NonFiniteGradientError` if the sum of finite
        gradients holds NaN or infinity and the optimizer refuses those, what the optimizer raises, and what `prepare`
        raises, which is called first. What it steps with is told to `note`."""
        optimizer = self.optimizer
        try:
            with optimizer.lock:
                before = optimizer.version
                try:
                    prepare()
                    applied = self.instead(gradients) if self.instead is not None else optimizer.apply(gradients, note)
                    before += applied
                    gradients.passed(optimizer.number, applied, max(optimizer.version + 1, version))
                finally:
                    optimizer.version = max(optimizer.version + 1, version)
                    first = max(before, optimizer.version - MOST_UNCHANGED) + 1
                    self._unchanged.extend(range(first, optimizer.version + 1))
        finally:
            if self._history is not None:
                self._history.reach(self.optimizer.version)

    def contribution(self, context: PassContext | None) -> Contribution:
        """The gradients of a context for covered parameters, to be offered to a round. Raises as
        `HostedOptimizer.check`."""
        parameters = self.optimizer.parameters
        if context is None:
            return Contribution([None] * len(parameters), None)
        self.optimizer.check(context)
        return Contribution(context.gradients_of(parameters), context, attempt=context.attempt)

    def read_version(self, context: PassContext | FirstReadings | None) -> int | None:
        """The version whose parameters a pass or replica has first read; None if it has read none.

        Steps of other optimizers of the same parameters count as steps of this one. The parameters have the same values
        at a version that has changed nothing here and at the one before; it is the later one then. It is negative if
        there were more steps since than this optimizer has made in all.
        """
        optimizer = self.optimizer
        # A step counts for parameters before it counts here, and rounds may be decided that are not applied yet.
        with optimizer.lock:
            staleness = None if context is None else context.staleness(optimizer.parameters, optimizer.parameter_states)
            if staleness is None:
                return None
            read = optimizer.version - staleness
            for version in reversed(self._unchanged):
                if version <= read:
                    break
                read -= 1
            return read
