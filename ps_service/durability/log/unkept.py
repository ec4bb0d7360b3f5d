"""Objects whose state cannot be written: what the log has of them, or under their names, must not come back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ps_service.durability.object_states import OutOfTime
from ps_wire.v1.operations_pb2 import DeleteRequest

if TYPE_CHECKING:
    from collections.abc import Container

    from ps_service.durability.log.owners_log import OwnersLog
    from ps_service.engine import Engine
    from ps_service.hosting.objects import HostedObject
    from ps_wire.v1 import checkpoint_pb2 as pb


def is_made_from(hosted: HostedObject, ids: Container[str]) -> bool:
    """Whether an object is one of those with these ids, or was made from one."""
    spec = hosted.creation_spec
    made_from = () if spec is None else spec.dependencies
    return hosted.ref.object_id in ids or any(is_made_from(each, ids) for each in made_from)


def note(log: OwnersLog, record: pb.LogRecord, hosted: HostedObject, why: Exception, new: set[str]) -> None:
    """Notes in a record that an object is not in the log, or not any more; `new` are those that the record adds."""
    object_id, engine = hosted.ref.object_id, log.engine
    was_kept = object_id in log.known or object_id in new
    new.discard(object_id)
    if isinstance(why, OutOfTime):
        log.known.discard(object_id)  # it comes with the next record that needs it
        return
    if was_kept:
        record.effects.add().unkept = object_id
        # What was made from it has to come again with it.
        log.known -= {each.ref.object_id for each in engine.registry.objects() if is_made_from(each, (object_id,))}
    elif hosted.name and hosted not in log.unkept:
        # It has replaced what the log may have under its name.
        record.effects.add().again.request.delete.CopyFrom(DeleteRequest(name=hosted.name, everywhere=True))
    log.unkept.add(hosted)
    if was_kept or (hosted.name and hosted.has_state):
        text = f"{hosted} is not kept: {why}"
        engine.events.note("log", text, "warning", subject=hosted.name, alike=("unkept", object_id))


def remove(engine: Engine, ids: Container[str]) -> None:
    """Removes objects of which the log says so in the end, with what was made from them."""
    for each in [each for each in engine.registry.objects() if is_made_from(each, ids)]:
        engine.registry.lose(each.ref.object_id)
