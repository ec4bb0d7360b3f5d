"""What an owner holds for rounds that another owner decides, in a checkpoint and in the log."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from ps_service.durability.named_gradients import keyed_gradients, named_gradients, placed
from ps_service.requests import round_messages
from ps_service.training.following import Held, Replayed
from ps_service.training.round_gradients import Contribution, RoundGradients

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ps_service.policies.offers import OfferKey
    from ps_service.tables.naming import Named
    from ps_service.training.following import Following
    from ps_service.training.optimizers import HostedOptimizer
    from ps_wire.v1 import checkpoint_pb2 as pb
    from ps_wire.v1.values_pb2 import Value


class Read(NamedTuple):
    """Gradients that are held, named."""

    key: OfferKey
    read: int
    gradients: Sequence[Named | None]


def read(optimizer: HostedOptimizer, following: Following) -> list[Read]:
    """The gradients that are held now."""
    return [
        Read(key, held.read, list(named_gradients(optimizer, held.contribution.gradients)))
        for key, held in following.held().items()
    ]


def write(found: Sequence[Read], record: pb.RoundsRecord, store: Callable[[Any, Value], object]) -> None:
    """Writes them into the record of an optimizer."""
    for each in found:
        held = record.held.add(read=each.read)
        held.key.CopyFrom(round_messages.key_message(each.key))
        store(list(each.gradients), held.gradients)


def write_effect(
    effect: pb.HeldEffect, optimizer: HostedOptimizer, key: OfferKey, held: Held, encode: Callable[[Value, Any], object]
) -> None:
    """Writes that gradients are held into a record of the log."""
    effect.key.CopyFrom(round_messages.key_message(key))
    effect.read = held.read
    effect.places.extend(place for place, each in enumerate(held.contribution.gradients) if each is not None)
    named = named_gradients(optimizer, held.contribution.gradients)
    encode(effect.gradients, [each for each in named if each is not None])


def restore(
    optimizer: HostedOptimizer, following: Following, record: pb.RoundsRecord, load: Callable[[Value], Any]
) -> None:
    """Holds what a checkpoint has."""
    for each in record.held:
        gradients = keyed_gradients(optimizer, load(each.gradients))
        following.restore_held(round_messages.read_key(each.key), Held(Contribution(gradients, None), each.read))


def replay(
    optimizer: HostedOptimizer,
    following: Following,
    effect: pb.RoundsEffect,
    load: Callable[[Value], Any],
    instead: Callable[[RoundGradients], bool] | None,
) -> None:
    """Does again what a record of the log tells. What is `instead` applies gradients in the place of the optimizer."""
    if effect.HasField("held"):
        gradients = placed(optimizer, effect.held.places, load(effect.held.gradients))
        key = round_messages.read_key(effect.held.key)
        following.restore_held(key, Held(Contribution(gradients, None), effect.held.read))
    for each in effect.released:
        following.release(round_messages.read_key(each))
    if effect.HasField("decisions"):
        steps, decisions = following.steps, effect.decisions
        steps.instead = instead
        try:
            replayed = Replayed(_corrected(optimizer, effect, load), effect.failed)
            following.replay(decisions.base, round_messages.read(decisions), replayed)
        finally:
            steps.instead = None


def _corrected(optimizer: HostedOptimizer, effect: pb.RoundsEffect, load: Callable[[Value], Any]) -> list[Any] | None:
    """The gradients of a record, if it has others than those that were held."""
    if not (effect.HasField("step") or effect.HasField("pooled")):
        return None
    of = effect.step if effect.HasField("step") else effect.pooled
    # Rows of tables have images in their place.
    dense = load(of.gradients)
    return placed(optimizer, of.places[: len(dense)], dense)
