"""Steps of several optimizers as one: all of them apply the gradients of a pass, or none."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

from ps_service.training.copies import StepUndo
from ps_service.training.optimizers import noted
from ps_service.training.sparse_rules import never_half_done
from ps_service.training.step_access import StepAccess

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ps_service.parameters.locks import ParameterLocks
    from ps_service.parameters.state import ParameterState
    from ps_service.passes.pass_context import PassContext
    from ps_service.training.optimizers import HostedOptimizer, Note, Present


class Stepped(NamedTuple):
    """The version of an optimizer after a step, and the number of steps since its parameters were read."""

    version: int
    staleness: int


class _Share:
    """The gradients of one optimizer that has some."""

    def __init__(self, optimizer: HostedOptimizer, present: Sequence[Present]) -> None:
        self.optimizer = optimizer
        self.present = present
        self.parameters = [covered.parameter for covered, _, _ in present]
        self.states = [covered.parameter_state for covered, _, _ in present]


def step_together(
    optimizers: Sequence[HostedOptimizer],
    context: PassContext,
    locks: ParameterLocks,
    notes: Sequence[Note] | None = None,
) -> list[Stepped]:
    """Applies the gradients of a pass to several optimizers: all of them, or, if anything raises, none. Forwards of
    modules see all of it or nothing, unless all of these optimizers let them see a part. With `notes`, one for each
    optimizer, what they step with is told to these. Raises as `HostedOptimizer.step`."""
    with ExitStack() as stack:
        # Always in the same order, so that two of these steps never wait for each other.
        for optimizer in sorted(optimizers, key=lambda each: each.number):
            stack.enter_context(optimizer.lock)
        nbytes = context.gradient_bytes
        attempt = context.attempt
        due = [each for each in optimizers if attempt is None or not attempt.was_applied(each.number)]
        shares = [_Share(each, present) for each in due if (present := each.check(context))]
        staleness: dict[int, int] = {}
        logged = None if notes is None else [noted(share.present) for share in shares]
        if shares:
            staleness = _apply(shares, context, nbytes, locks)
            for share in shares:
                if logged is not None and notes is not None:
                    note = notes[optimizers.index(share.optimizer)]
                    note(share.optimizer, share.optimizer.version + 1, logged.pop(0))
                share.optimizer.version += 1
        if attempt is None:
            return [Stepped(each.version, staleness.get(each.number, 0)) for each in optimizers]
        for each in optimizers:
            attempt.passed(each.number, each.number in staleness, each.version)
        return [
            Stepped(attempt.version_of(each.number, each.version), staleness.get(each.number, 0)) for each in optimizers
        ]


def _apply(shares: Sequence[_Share], context: PassContext, nbytes: int, locks: ParameterLocks) -> dict[int, int]:
    """Applies all shares or none, and counts their steps. Returns the staleness by the number of the optimizer."""
    parameters: dict[int, Any] = {}
    states: dict[int, ParameterState] = {}
    for share in shares:
        for parameter, state in zip(share.parameters, share.states, strict=True):
            parameters[id(state)], states[id(state)] = parameter, state
    consistent = any(share.optimizer.is_consistent for share in shares)
    with StepAccess(locks, list(parameters.values()), list(states.values()), consistent):
        # Those that may raise come first, so that whatever has to be undone has a copy.
        may_raise = [share for share in shares if not never_half_done(share.optimizer.optimizer)]
        undo = [StepUndo(share.optimizer.optimizer, share.parameters) for share in may_raise]
        try:
            for share in (*may_raise, *(share for share in shares if share not in may_raise)):
                latency = share.optimizer.latency
                began = latency.begin()
                share.optimizer.write(share.present)
                latency.end(began, nbytes)
        except BaseException:
            for copy in undo:
                copy.restore()
            raise
        staleness = {}
        for share in shares:
            share.optimizer.count(share.parameters, share.states, context)
            staleness[share.optimizer.number] = context.last_staleness
        return staleness
