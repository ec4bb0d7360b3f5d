"""Look-ups in hosted tables, and the records of those that belong to a pass."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.graph import saved_tensors_hooks

from ps_service.hosting.leaves import Leaf
from ps_service.hosting.references import RRef
from ps_service.passes import kept_values
from ps_service.passes.arguments import NO
from ps_service.passes.results import Used, record
from ps_service.passes.saved_tensors import Kept, unpack
from ps_service.tables.stand_in import RowsOfTable
from ps_wire.errors import InvalidArgumentError, RowsMovedError
from ps_wire.tables.names import AGREE, APPLIED_STEPS, IS_QUIET, USED_WITH
from ps_wire.tables.routing import CLOSED

if TYPE_CHECKING:
    from ps_service.hosting.objects import HostedObject
    from ps_service.passes.arguments import Invocation, Keep
    from ps_service.passes.contexts import PassHost

LOOK_UP = "look_up"


def call_table(engine: PassHost, target: HostedObject, method: str, asked: Invocation) -> Any:
    """Calls a method of a table. Raises as `calls.call`, and as `HostedTable.look_up`. A recorded look-up is a record
    as any other: its leaves are the parameters that stand for all rows of the tables."""
    known = asked.method or target.method(method)
    arguments, args, kwargs, _, recording, keep, _ = asked
    if recording is None or method != LOOK_UP:
        if method == IS_QUIET:
            kwargs = {**kwargs, "found": partial(_is_unused, engine, target)}
        elif method == USED_WITH:
            kwargs = {**kwargs, "found": partial(engine.used_with, target.value.parameter)}
        elif method == APPLIED_STEPS:
            kwargs = {**kwargs, "found": partial(engine.applied_to, target.value.parameter)}
        elif method == AGREE:
            kwargs = {**kwargs, "found": partial(engine.applied_to, target.value.parameter, forget=True)}
        with torch.no_grad():
            return _returned(known.function(target.value, *args, **kwargs), keep)
    context = engine.contexts.open(recording.context, recording.call.caller)
    args, kwargs = arguments.enter((args, kwargs))
    tables = _tables(engine, target, args)
    # Without a handle: what a trainer would get as the gradient of a table are numbers of rows, which it does not know.
    leaves = [Leaf(None, parameter, parameter) for each in tables for parameter in each.parameters.values()]
    steps = [each.parameter_states[0].steps for each in tables]
    share = context.held.share  # counts for the pass what is saved for its backward, for as long as it is kept
    marks = [each.value.mark for each in tables]
    # Those that are closed stay as they are, as long as they were used in this pass.
    going_on = [each.value for each in tables if context.uses(each.value.parameter)] if CLOSED in marks else []
    hooks = saved_tensors_hooks(lambda tensor: Kept(tensor, share(tensor.untyped_storage())), unpack)
    with torch.enable_grad(), hooks:
        found = target.value.look_up_recorded(*args, **kwargs, going_on=going_on)
    used, result = Used(leaves, steps, others=False), _returned(found, keep)
    record(engine, context, recording.call, arguments, used, result, known.backward_latency)
    if [each.value.mark for each in tables] != marks:
        # Who closed a table may not have seen the record.
        context.drop(recording.call)
        raise RowsMovedError("rows of a table were about to move to another owner while they were looked up")
    return result


def _is_unused(engine: PassHost, table: HostedObject) -> bool:
    """Whether no gradients of the rows of a table are there or may still come."""
    parameter = table.value.parameter
    return not any(each.uses(parameter) for each in engine.contexts.all()) and not engine.keeps_gradients(parameter)


def _tables(engine: PassHost, target: HostedObject, args: tuple[Any, ...]) -> list[HostedObject]:
    """The tables of a look-up. One that was left out would get no gradient, without a word: a part that refers to
    something else than a table of this owner is an `InvalidArgumentError`."""
    found = {id(target): target}
    for part in args[0] if args and isinstance(args[0], list) else ():
        if not isinstance(part, tuple) or not part or part[0] is None:
            continue
        # Members of a group have references of their own around those of the owner.
        reference = engine.membership.peers.departing(part[0], None)
        hosted = reference.hosted if isinstance(reference, RRef) else None
        if hosted is None or not isinstance(hosted.value, RowsOfTable):
            raise InvalidArgumentError("a part of a look-up refers to something else than a table of this owner")
        found[id(hosted)] = hosted
    return list(found.values())


def _returned(result: Any, keep: Keep) -> Any:
    return result if keep is NO else RRef(kept_values.by_value(result))
