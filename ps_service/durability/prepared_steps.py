"""Steps over several owners that were prepared, in checkpoints and in the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import xxhash

from ps_service.tables.naming import Named, keyed, named
from ps_service.training.optimizers import optimizer_of
from ps_service.training.prepared import Prepared
from ps_wire.codec.payload import PayloadWriter
from ps_wire.codec.values import Encoder
from ps_wire.refs import ContextId
from ps_wire.v1.values_pb2 import Value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ps_service.durability.object_records import Storage
    from ps_service.engine import Engine
    from ps_service.training.optimizers import HostedOptimizer, Present
    from ps_wire.attempts import Attempt
    from ps_wire.v1 import checkpoint_pb2 as pb


def prepared(optimizer: HostedOptimizer, attempt: Attempt | None, present: Sequence[Present]) -> Prepared:
    """The step of an optimizer with these gradients."""
    place = 0 if attempt is None else attempt.place_of(optimizer.number)
    gradients = [each for _, _, each in present]
    digest = _digest(named_gradients(present))
    return Prepared(_places(optimizer, present), gradients, digest, None if attempt is None else attempt.of, place)


def named_gradients(present: Sequence[Present]) -> list[Named]:
    """Gradients in the form that survives a restart."""
    return [named(covered.parameter, each) for covered, _, each in present]


class Read(NamedTuple):
    """A step that was prepared, with its gradients named."""

    id: ContextId
    object_id: str
    step: Prepared
    gradients: list[Named]


def read(engine: Engine) -> list[Read]:
    """The steps that are prepared now."""
    found = []
    for id, object_id, each in engine.prepared.all():
        hosted = engine.registry.get(object_id)
        if hosted is not None:
            parameters = optimizer_of(hosted).parameters
            of_places = zip(each.places, each.gradients, strict=True)
            found.append(Read(id, object_id, each, [named(parameters[place], of) for place, of in of_places]))
    return found


def write_all(found: Sequence[Read], checkpoint: pb.Checkpoint, storage: Storage) -> None:
    """Writes steps into a checkpoint."""
    for each in found:
        record = checkpoint.prepared.add()
        write(record.prepared, each.id, each.object_id, each.step)
        prefix = f"prepared/{each.id.trainer.hex()[:8]}/{each.id.number}/{each.object_id[:8]}"
        storage.store(each.gradients, record.prepared.gradients, record.tensors, prefix)


def write(effect: pb.PreparedEffect, id: ContextId, object_id: str, step: Prepared) -> None:
    """Writes a step, but for its gradients."""
    effect.trainer, effect.number, effect.object_id = id.trainer, id.number, object_id
    effect.places.extend(step.places)
    if step.run is not None:
        effect.run_trainer, effect.run = step.run
    effect.place = step.place


def restore(engine: Engine, effect: pb.PreparedEffect, gradients: Sequence[Named]) -> None:
    """Continues with a step, unless its optimizer is gone."""
    hosted = engine.registry.get(effect.object_id)
    if hosted is None:
        return
    parameters = optimizer_of(hosted).parameters
    run = (effect.run_trainer, effect.run) if effect.run else None
    there = [keyed(parameters[place], each) for place, each in zip(effect.places, gradients, strict=True)]
    step = Prepared(list(effect.places), there, _digest(gradients), run, effect.place)
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
    is_same = _places(optimizer, present) == list(found.places)
    step.is_prepared = is_same and _digest(named_gradients(present)) == found.digest
    return step.is_prepared


def _places(optimizer: HostedOptimizer, present: Sequence[Present]) -> list[int]:
    places = {id(each): place for place, each in enumerate(optimizer.parameters)}
    return [places[id(covered.parameter)] for covered, _, _ in present]


def _digest(gradients: Sequence[Any]) -> int:
    payload, message = PayloadWriter(), Value()
    Encoder(payload).encode_into(message, list(gradients))
    digest = xxhash.xxh3_64(message.SerializeToString(deterministic=True))
    for each in payload.chunks:
        digest.update(each)
    return digest.intdigest()
