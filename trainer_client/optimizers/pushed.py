"""Steps on owners by themselves, with gradients that replicas have added to a pass; and what is looked at before."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from trainer_client.optimizers.replies import answered, version
from trainer_client.optimizers.results import all_here, all_of

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
        looks_first: Whether all owners check gradients and values before one of them steps.
        values: What is reported with the gradients, to the first owner by name.

    Returns:
        What each owner has answered.
    """
    await all_of({str(place): each for place, each in enumerate(chain(*added.values()))})
    # An owner that has lost the session would take this for a pass without gradients there.
    context.check()
    if looks_first:
        await all_of(_looks(parts, context, values))
        context.check()
    first = min(parts)
    steps = {
        name: part.step(context, answered, apart=True, values=values if name == first else None)
        for name, part in parts.items()
    }
    for name, step in steps.items():
        then(name, [step])
    return await all_of(steps)


def look(parts: Mapping[str, RemoteOptimizer], context: Context, values: Mapping[str, Reported]) -> None:
    """Raises the error that a step would raise before it changes anything on an owner; in a thread that may wait."""
    all_here(_looks(parts, context, values))


def _looks(
    parts: Mapping[str, RemoteOptimizer], context: Context, values: Mapping[str, Reported]
) -> dict[str, InFlightRequest[int]]:
    return {
        name: part.step(context, version, check_only=True, values=values if name == min(parts) else None)
        for name, part in parts.items()
    }
