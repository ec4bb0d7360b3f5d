"""The steps of an optimizer with a policy: each has the gradients of a round."""

from __future__ import annotations

import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Protocol

from ps_service.training.compensation import ParameterHistory
from ps_service.training.round_gradients import Contribution
from ps_wire.policies import Compensate

if TYPE_CHECKING:
    import torch

    from ps_service.parameters.state import ParameterState
    from ps_service.parameters.step_lock import StepLock
    from ps_service.passes.pass_context import PassContext
    from ps_service.passes.staleness import FirstReadings
    from ps_service.training.reported_values import ReportedValues
    from ps_service.training.round_gradients import RoundGradients
    from ps_wire.policies import Policy


MOST_UNCHANGED: Final = 64
"""How many versions are remembered that have changed nothing."""


class Stepper(Protocol):
    """What rounds need of their optimizer; see `HostedOptimizer`."""

    number: int
    version: int
    title: str
    parameters: list[torch.Tensor]
    parameter_states: list[ParameterState]
    reported: ReportedValues
    rounds: Any
    lock: StepLock

    def step(self, context: PassContext) -> int:
        """Applies the gradients of a context; returns the version after it."""

    def check(self, gradients: PassContext) -> object:
        """Checks the gradients of a context."""

    def apply(self, gradients: RoundGradients) -> bool:
        """Applies gradients, if there are any, with the lock held."""


class RoundSteps:
    """Steps an optimizer as rounds say, and tells which version a gradient is from.

    Args:
        optimizer: The optimizer.

    Attributes:
        optimizer: As the argument.
    """

    def __init__(self, optimizer: Stepper) -> None:
        self.optimizer = optimizer
        # The last versions that have changed nothing here: of several owners, an owner may have no gradient of a round.
        self._unchanged: deque[int] = deque(maxlen=MOST_UNCHANGED)
        self._history: ParameterHistory | None = None

    def forget(self) -> None:
        """The optimizer was removed: drops what would keep tensors until the garbage collector finds the cycle."""
        self.optimizer, self._history = weakref.proxy(self.optimizer), None

    def follow(self, policy: Policy, version: int) -> None:
        """Corrects stale gradients from this version on, if the policy says so."""
        stale = getattr(policy, "stale", None)
        self._history = None
        if isinstance(stale, Compensate):
            self._history = ParameterHistory(self.optimizer.parameters, stale.lambda_)
            self._history.keep(version)

    def compensated(self, contribution: Contribution, read: int, staleness: int) -> Contribution:
        """A contribution with corrected gradients, if they are stale and the policy says so."""
        if self._history is None or staleness <= 0:
            return contribution
        return contribution._replace(gradients=self._history.compensated(contribution.gradients, read))

    def apply(self, gradients: RoundGradients, version: int) -> None:
        """Applies the gradients of a round, which were checked: all of them, or, if anything raises, none.

        Args:
            gradients: The gradients.
            version: The version of the optimizer from now on, whatever happens.

        Raises:
            NonFiniteGradientError: The sum of finite gradients holds NaN or infinity, and the optimizer refuses those.
            Exception: The optimizer raised it.
        """
        optimizer = self.optimizer
        try:
            with optimizer.lock:
                before = optimizer.version
                try:
                    applied = optimizer.apply(gradients)
                    before += applied
                    gradients.passed(optimizer.number, applied)
                finally:
                    optimizer.version = max(optimizer.version + 1, version)
                    first = max(before, optimizer.version - MOST_UNCHANGED) + 1
                    self._unchanged.extend(range(first, optimizer.version + 1))
        finally:
            if self._history is not None:
                self._history.keep(version)

    def contribution(self, context: PassContext | None) -> Contribution:
        """The gradients of a context for covered parameters, to be offered to a round.

        Raises:
            The exceptions of `HostedOptimizer.step`.
        """
        parameters = self.optimizer.parameters
        if context is None:
            return Contribution([None] * len(parameters), None)
        self.optimizer.check(context)
        return Contribution(context.gradients_of(parameters), context, attempt=context.attempt)

    def read_version(self, context: PassContext | FirstReadings | None) -> int | None:
        """The version whose parameters a pass or replica has first read; None if it has read none.

        Steps of other optimizers of the same parameters count as steps of this one. The parameters have the same values
        at a version that has changed nothing here and at the one before; it is the later one then.
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
            return max(read, 0)
