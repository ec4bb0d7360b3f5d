"""What requests say of the attempts of a pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ps_service.requests import fields
from ps_wire.attempts import REPEATED, Attempt

if TYPE_CHECKING:
    from ps_service.engine import Engine
    from ps_service.passes.pass_context import PassContext
    from ps_service.requests.context import RequestContext
    from ps_service.training.optimizers import HostedOptimizer
    from ps_wire.v1 import operations_pb2 as pb


def of(context: PassContext | None) -> Attempt | None:
    """Which steps other attempts of a pass have applied; None if it has no other attempts."""
    return None if context is None else context.attempt


def of_push(ctx: RequestContext, request: pb.PushRequest) -> Attempt | None:
    """Whether another attempt of a push was applied; None if it is not made again.

    Raises `ContextEndedError` if its trainer has given it up, and has made later pushes.
    """
    if not request.run:
        return None
    # Unlike a pass, a push has no end that would refuse it if it comes late.
    return Attempt(ctx.engine.contexts.runs.of(ctx.trainer, request.run, request.runs_from, may_be_over=False))


def reason(attempt: Attempt | None, optimizer: HostedOptimizer) -> str:
    """Why the latest step of an attempt was not made; empty if it was made."""
    return REPEATED if attempt is not None and attempt.was_left_out(optimizer.number) else ""


def note(engine: Engine, request: Any) -> None:
    """Has a pass that its trainer may run again know which of its steps other attempts have applied.

    The request names the run in its context. Raises as `Contexts.get`.
    """
    message = request.context
    context = engine.contexts.get(fields.context_id(request))
    if context is not None and context.attempt is None:
        context.begin_attempt(engine.contexts.runs.of(message.trainer, message.run, message.runs_from))
