"""Steps over several owners that were prepared, in checkpoints and in the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import xxhash

from ps_service.training.prepared import Prepared
from ps_wire.codec.payload import PayloadWriter
from ps_wire.codec.values import Encoder
from ps_wire.refs import ContextId
from ps_wire.v1.values_pb2 import Value

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from ps_service.engine import Engine
    from ps_service.training.optimizers import HostedOptimizer, Present
    from ps_wire.attempts import Attempt
    from ps_wire.v1 import checkpoint_pb2 as pb


def prepared(optimizer: HostedOptimizer, attempt: Attempt | None, present: Sequence[Present]) -> Prepared:
    """The step of an optimizer with these gradients."""
    places, gradients = _parts(optimizer, present)
    place = 0 if attempt is None else attempt.place_of(optimizer.number)
    return Prepared(places, gradients, _digest(gradients), None if attempt is None else attempt.of, place)


def write(effect: pb.PreparedEffect, id: ContextId, object_id: str, step: Prepared) -> None:
    """Writes a step, but for its gradients."""
    effect.trainer, effect.number, effect.object_id = id.trainer, id.number, object_id
    effect.places.extend(step.places)
    if step.run is not None:
        effect.run_trainer, effect.run = step.run
    effect.place = step.place


def restore(engine: Engine, effect: pb.PreparedEffect, gradients: Sequence[torch.Tensor]) -> None:
    """Continues with a step."""
    run = (effect.run_trainer, effect.run) if effect.run else None
    step = Prepared(list(effect.places), gradients, _digest(gradients), run, effect.place)
    engine.prepared.put(ContextId(effect.trainer, effect.number), effect.object_id, step)


def refer(
    engine: Engine, id: ContextId, step: pb.StepEffect, optimizer: HostedOptimizer, present: Sequence[Present]
) -> bool:
    """Has the record of a step refer to what was prepared for it, which is over then. Says whether the gradients are
    those that were prepared; if not, the record needs them."""
    found = engine.prepared.take(id, optimizer.object_id)
    if found is None:
        return False
    step.trainer, step.number = id.trainer, id.number
    places, gradients = _parts(optimizer, present)
    step.is_prepared = places == list(found.places) and _digest(gradients) == found.digest
    return step.is_prepared


def _parts(optimizer: HostedOptimizer, present: Sequence[Present]) -> tuple[list[int], list[torch.Tensor]]:
    places = {id(each): place for place, each in enumerate(optimizer.parameters)}
    return [places[id(covered.parameter)] for covered, _, _ in present], [each for _, _, each in present]


def _digest(gradients: Sequence[Any]) -> int:
    payload, message = PayloadWriter(), Value()
    Encoder(payload).encode_into(message, list(gradients))
    digest = xxhash.xxh3_64(message.SerializeToString(deterministic=True))
    for each in payload.chunks:
        digest.update(each)
    return digest.intdigest()
