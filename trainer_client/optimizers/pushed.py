"""Steps with gradients that replicas have added to a pass, on owners that step by themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from trainer_client.optimizers.replies import answered
from trainer_client.optimizers.results import all_of

if TYPE_CHECKING:
    from ps_wire.reported import Reported
    from trainer_client.contexts.context import Context
    from trainer_client.optimizers.parts import RemoteOptimizer
    from trainer_client.optimizers.replies import Answered
    from trainer_client.session.in_flight import InFlightRequest

    Sent = Sequence[InFlightRequest[Any]]
    """Requests of one owner."""

    Then = Callable[[str, Sent], None]
    """Called with the name of an owner, and with the requests after which it has stepped."""


async def step_parts(
    parts: Mapping[str, RemoteOptimizer],
    context: Context,
    added: Mapping[str, Sent],
    then: Then,
    looks_first: bool,
    values: Mapping[str, Reported],
) -> dict[str, Answered]:
    """Steps all parts, once all owners have accepted the gradients.

    Args:
        parts: The parts, by owner.
        context: The pass.
        added: The requests that add gradients, by owner.
        then: As for `DistributedOptimizer.step_pushed`.
        looks_first: Whether all owners check the gradients before one of them steps.
        values: What is reported with the gradients, to the first owner by name.

    Returns:
        What each owner has answered.
    """
    await all_of({str(place): each for place, each in enumerate(chain(*added.values()))})
    # An owner that has lost the session would take this for a pass without gradients there.
    context.check()
    if looks_first:
        await all_of({name: part.step(context, answered, check_only=True) for name, part in parts.items()})
        context.check()
    first = min(parts)
    steps = {
        name: part.step(context, answered, apart=True, values=values if name == first else None)
        for name, part in parts.items()
    }
    for name, step in steps.items():
        then(name, [step])
    return await all_of(steps)
