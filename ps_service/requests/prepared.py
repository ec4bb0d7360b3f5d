"""Steps over several owners that were prepared: they are made also if the owner is killed, and has lost the pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ps_service.memory.held import Held
from ps_service.passes.gradients import Gradient
from ps_service.passes.pass_context import PassContext
from ps_service.training.optimizers import optimizer_of
from ps_wire.errors import ContextLostError
from ps_wire.refs import Ref

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ps_service.engine import Engine
    from ps_service.requests.context import RequestContext
    from ps_service.training.optimizers import HostedOptimizer, Present
    from ps_wire.refs import ContextId


def prepare(ctx: RequestContext, optimizer: HostedOptimizer, id: ContextId, context: PassContext | None) -> None:
    """Checks the gradients of a pass, and has the log keep them for the step of an optimizer, if there is one. Raises
    as `HostedOptimizer.check` and `Effects.will_step`."""
    present: list[Present] = [] if context is None else optimizer.check(context)
    if ctx.effects is not None and optimizer.rounds is None:
        ctx.effects.prepares(optimizer, id, None if context is None else context.attempt, present)


def pass_of(engine: Engine, id: ContextId, optimizers: Iterable[HostedOptimizer]) -> PassContext | None:
    """As `Contexts.get`, or what was prepared of a lost pass for the steps of some optimizers."""
    try:
        return engine.contexts.get(id)
    except ContextLostError:
        prepared = engine.prepared.of(id)
        if not all(each.object_id in prepared for each in optimizers):
            raise
    found = PassContext(id, Held(), engine.contexts.clock())
    for object_id, each in prepared.items():
        optimizer = optimizer_of(engine.registry.find(Ref(engine.name, object_id)))
        covered = [optimizer.covered[place] for place in each.places]
        gradients = [Gradient(of.ref, of.parameter, tensor) for of, tensor in zip(covered, each.gradients, strict=True)]
        found.bring(gradients, [of.parameter_state.steps for of in covered])
        if each.run is not None:
            found.begin_attempt(engine.contexts.runs.of(*each.run), each.run)
            assert found.attempt is not None
            for _ in range(each.place):
                found.attempt.passed(optimizer.number, applied=False)
    return found
