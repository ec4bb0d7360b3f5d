"""Records a call in its context."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ps_service.group.peers import Foreign
from ps_service.hosting.histories import History
from ps_service.passes.records import Record
from ps_wire.codec.trees import leaves_in, parts_of, tensors_in

if TYPE_CHECKING:
    from ps_service.hosting.leaves import Leaf
    from ps_service.hosting.references import RRef
    from ps_service.memory.held import Share
    from ps_service.passes.arguments import Arguments
    from ps_service.passes.contexts import PassHost
    from ps_service.passes.pass_context import PassContext
    from ps_service.passes.pass_values import PassNumbers, PassValues
    from ps_wire.refs import CallKey
    from ps_wire.runtime.latency import Latency


class Used(NamedTuple):
    """What a recorded call has used on this owner.

    `steps` has for each of the leaves the number of steps of its parameter when the call began. There are `others` if
    its graph may reach further leaves. The shares count what torch has saved; None if that is not known. The backward
    gives modules their `values`, which are known when the call has ended.
    """

    leaves: Sequence[Leaf] = ()
    steps: Sequence[int] = ()
    others: bool = True
    shares: Sequence[Share] | None = None
    values: list[PassValues | PassNumbers] | None = None


def record(
    engine: PassHost,
    context: PassContext,
    call: CallKey,
    arguments: Arguments,
    used: Used,
    result: Any,
    latency: Latency | None = None,
    computed: Any = None,
) -> Any:
    """Keeps what the backward of a call needs, and returns the result of the call. The latency is that of the `Record`.
    `computed` is what was computed, if the result is a copy of it that is sent and freed. Raises `ContextEndedError` if
    the context ended while the call ran."""
    outputs, tokens = _outputs(engine, context, call, result)
    shares = used.shares
    if shares is None:
        # For code without hosted modules it is not known which tensors torch saves: mostly inputs and results.
        # Storages count by address, so one that is freed at once must not: another would get its address uncounted.
        saved = outputs if computed is None else tensors_in(computed)
        shares = context.held.shares([*arguments.entering, *(each for each in saved if each.requires_grad)])
    called = context.called
    made = Record(
        outputs,
        arguments.entry,
        len(arguments.wanting),
        used.leaves,
        used.steps,
        latency if called is None else None,  # its backward may wait for other owners
        arguments.nbytes,
        arguments.kept,
        tokens,
        called,
        used.others,
        used.values,
    )
    made.shares = shares
    if arguments.graphs and any(each.requires_grad for each in outputs):
        made.graphs = arguments.graphs  # else no backward will come
    context.add(call, made)
    return result


def _outputs(
    engine: PassHost, context: PassContext, call: CallKey, result: Any
) -> tuple[list[torch.Tensor], list[int]]:
    """The outputs of a call, each once, as in the reply; and which of them stand for results on other owners."""
    found: dict[int, torch.Tensor] = {}
    references: list[RRef | Foreign] = []
    for leaf in (result,) if isinstance(result, torch.Tensor) else leaves_in(result):
        if isinstance(leaf, torch.Tensor):
            found.setdefault(id(leaf), leaf)
        elif (reference := engine.membership.peers.departing(leaf, context.id)) is not None:
            references.append(reference)
    outputs = list(found.values())
    tokens: list[int] = []
    for reference in references:
        if isinstance(reference, Foreign):
            if reference.token is not None:
                tokens.append(len(outputs))
                outputs.append(reference.token)
        elif reference.hosted is None:
            _keep_history(context, call, reference, outputs)
    return outputs, tokens


def _keep_history(context: PassContext, call: CallKey, reference: RRef, outputs: list[torch.Tensor]) -> None:
    """Lets later calls propagate through a result that stays on this owner."""
    value = reference.local_value()
    if not any(isinstance(part, torch.Tensor) and part.grad_fn is not None for part in parts_of(value)):
        return
    positions: list[int | None] = []
    for tensor in tensors_in(value):
        # A leaf is the same tensor for all calls, and needs none.
        positions.append(None if tensor.grad_fn is None else len(outputs))
        if tensor.grad_fn is not None:
            outputs.append(tensor)
    reference.history = History(context.id, call, tuple(positions))
