"""Values that trainers report with gradients, in requests and replies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ps_service.training.copies import copied
from ps_service.training.optimizers import optimizer_of
from ps_wire import reported
from ps_wire.codec.trees import tensors_in
from ps_wire.errors import InvalidArgumentError
from ps_wire.reported import Reported

if TYPE_CHECKING:
    from ps_service.passes.pass_context import PassContext
    from ps_service.requests.context import RequestContext
    from ps_service.training.optimizers import HostedOptimizer
    from ps_wire.attempts import Attempt
    from ps_wire.v1 import operations_pb2 as pb

T = TypeVar("T")

_REDUCES: Final[dict[int, str]] = {message: reduce for reduce, message in reported.REDUCTIONS.items()}


def read(ctx: RequestContext, messages: Sequence[pb.ReportedValue]) -> dict[str, Reported]:
    """The values of a request by name, with memory of their own. Raises as `ps_wire.reported.reported`, and
    `InvalidArgumentError` if a name comes twice."""
    if not messages:
        return {}
    reported.check_size(sum(each.ByteSize() for each in messages))
    values = {each.name: Reported(_REDUCES.get(each.reduction, ""), ctx.read_plain(each.value)) for each in messages}
    if len(values) != len(messages):
        raise InvalidArgumentError("a value is reported twice with one gradient")
    # A few bytes may be a large tensor, if they are repeated.
    reported.check_size(sum(each.numel() * each.element_size() for each in tensors_in(list(values.values()))))
    reported.check(values)
    return {name: each._replace(value=copied(each.value)) for name, each in values.items()}


def check(ctx: RequestContext, optimizer: HostedOptimizer, messages: Sequence[pb.ReportedValue]) -> None:
    """Raises the error with which the values of a request would be refused."""
    if messages:
        known = optimizer.reported
        known.drop(known.expect(ctx.trainer, read(ctx, messages)))


def add_to_curves(ctx: RequestContext, request: pb.AddToCurvesRequest, reply: pb.AddToCurvesReply) -> None:
    """Adds values that count with no gradients to the curves of an optimizer."""
    optimizer = optimizer_of(ctx.find(request.optimizer))
    for name in {name for each in request.values for name in each.values}:
        reported.check_name(name)
    for each in request.values:
        optimizer.reported.show(min(each.version, optimizer.version), each.values)


def counted(
    ctx: RequestContext,
    optimizer: HostedOptimizer,
    values: Mapping[str, Reported],
    step: Callable[[], T],
    attempt: Attempt | None,
) -> tuple[T, dict[str, Any]]:
    """Makes a step that is a round by itself; returns its result, and the values of the round. Those that came with it
    do not count if it is left out because another attempt of it was applied: the values of that have."""
    known = optimizer.reported
    report = known.expect(ctx.trainer, values)
    try:
        result = step()
    except BaseException:
        known.drop(report)
        raise
    if attempt is not None and attempt.was_left_out(optimizer.number):
        known.drop(report)
        return result, {}
    return result, known.count(optimizer.version, [report])


def step_with(
    ctx: RequestContext,
    optimizer: HostedOptimizer,
    request: pb.StepRequest,
    reply: pb.StepReply,
    step: Callable[[], T],
    context: PassContext | None,
) -> T:
    """Like `counted` in a pass, with the values of a request, if it has any; writes those of the round."""
    if not request.values:
        return step()
    attempt = None if context is None else context.attempt
    result, of_round = counted(ctx, optimizer, read(ctx, request.values), step, attempt)
    if of_round:
        ctx.write(reply.values, of_round)
    return result
