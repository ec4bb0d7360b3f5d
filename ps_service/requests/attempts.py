"""What requests say of the attempts of a pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ps_service.requests import fields

if TYPE_CHECKING:
    from ps_service.engine import Engine
    from ps_service.passes.pass_context import PassContext
    from ps_service.training.optimizers import HostedOptimizer


def was_applied(context: PassContext | None, optimizer: HostedOptimizer) -> bool:
    """Whether another attempt of a pass has made the next step of an optimizer."""
    attempt = None if context is None else context.attempt
    return attempt is not None and attempt.was_applied(optimizer.number)


def note(engine: Engine, request: Any) -> None:
    """Has a pass that its trainer may run again know which of its steps other attempts have applied.

    Args:
        engine: The owner.
        request: A request that steps, and names the run in its context.

    Raises:
        InvalidArgumentError: The request names no pass.
        ContextEndedError, ContextLostError: The pass has ended, or was lost.
    """
    message = request.context
    context = engine.contexts.get(fields.context_id(request))
    if context is not None and context.attempt is None:
        context.begin_attempt(engine.contexts.runs.of(message.trainer, message.run, message.runs_from))
