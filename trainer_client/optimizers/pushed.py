"""Steps of the parts of an optimizer on owners; those with gradients of replicas, and what is checked before."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

from trainer_client.optimizers.replies import answered, version
from trainer_client.optimizers.results import all_here, all_of

if TYPE_CHECKING:
    from ps_wire.reported import Reported
    from trainer_client.contexts.context import Context
    from trainer_client.optimizers.parts import RemoteOptimizer
    from trainer_client.optimizers.replies import Answered
    from trainer_client.session.in_flight import InFlightRequest, Read

    Sent = Sequence[InFlightRequest[Any]]
    """Requests of one owner."""

    Then = Callable[[str, Sent], None]
    """Called with the name of an owner, and with the requests after which it has stepped."""


T = TypeVar("T")


async def step_parts(
    parts: Mapping[str, RemoteOptimizer],
    context: Context,
    added: Mapping[str, Sent],
    then: Then,
    checks_first: bool,
    values: Mapping[str, Reported],
) -> dict[str, Answered]:
    """Steps all parts, once all owners have accepted the gradients.

    Args:
        parts: The parts, by owner.
        context: The pass.
        added: The requests that add gradients, by owner.
        then: As for `DistributedOptimizer.step_pushed`.
        checks_first: Whether all owners check gradients and values before one of them steps.
        values: What is reported with the gradients, to the first owner by name.

    Returns:
        What each owner has answered.
    """
    await all_of({str(place): each for place, each in enumerate(chain(*added.values()))})
    # An owner that has lost the session would take this for a pass without gradients there.
    context.check()
    if checks_first:
        await all_of(_checks(parts, context, values))
        context.check()
    steps = steps_of(parts, context, answered, values, apart=True)
    for name, step in steps.items():
        then(name, [step])
    return await all_of(steps)


def check(parts: Mapping[str, RemoteOptimizer], context: Context, values: Mapping[str, Reported]) -> None:
    """Raises the error that a step would raise before it changes anything on an owner; in a thread that may wait."""
    all_here(_checks(parts, context, values))


def _checks(
    parts: Mapping[str, RemoteOptimizer], context: Context, values: Mapping[str, Reported]
) -> dict[str, InFlightRequest[int]]:
    return steps_of(parts, context, version, values, check_only=True)


def steps_of(
    parts: Mapping[str, RemoteOptimizer],
    context: Context,
    read: Read[T],
    values: Mapping[str, Reported],
    owners: Iterable[str] | None = None,
    **how: Any,
) -> dict[str, InFlightRequest[T]]:
    """Asks for the steps of parts, as `RemoteOptimizer.step`. Values go with that on the first owner by name.

    Args:
        parts: The parts, by owner.
        context: The pass.
        read: Makes the result of each reply.
        values: What is reported with the gradients.
        owners: Those that are asked; None for all.
        how: Further arguments of each step.
    """
    first = min(parts, default="")
    return {
        name: parts[name].step(context, read, values=values if name == first else None, **how)
        for name in (parts if owners is None else owners)
    }
