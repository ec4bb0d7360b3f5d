"""What moves make of objects: done when it happens, when the log is replayed, and from a checkpoint.

An object is the source's until a record of the source's log says that it has left. Before, the target has it at most as
an arrival, which nobody may use; afterwards, the target accepts the arrival, as soon as anybody asks it to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ps_service.durability.run_records import applied_runs
from ps_service.hosting.moved_objects import Arrival
from ps_wire.v1 import checkpoint_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ps_service.engine import Engine

_MOST_ACCEPTED: Final = 256
"""The most moves of which is remembered what they have brought."""


def apply(engine: Engine, effect: pb.MoveEffect) -> None:
    """Does what a move makes of objects. Raises `NameConflictError`, with nothing changed, if objects that arrive have
    names that others have."""
    moves, registry = engine.moves, engine.registry
    match effect.state:
        case pb.MOVE_STATE_LEFT:
            for each in effect.objects:
                moves.held.pop(each.object_id, None)
                registry.leave(each.object_id, each.name, effect.owner, effect.move)
        case pb.MOVE_STATE_ARRIVING | pb.MOVE_STATE_ARRIVED:
            _arrive(engine, effect)
        case pb.MOVE_STATE_ACCEPTED:
            if (arrival := moves.arrivals.pop(effect.move, None)) is not None:
                _accept(engine, arrival)
            moves.accepted[effect.move] = tuple(each.object_id for each in effect.objects)
            if len(moves.accepted) > _MOST_ACCEPTED:
                moves.accepted.popitem(last=False)
        case pb.MOVE_STATE_DROPPED:
            arrival = moves.arrivals.pop(effect.move, None)
            for object_id, name in reversed((arrival.objects if arrival is not None else {}).items()):
                registry.drop(object_id, name)
                moves.held.pop(object_id, None)


def restore(engine: Engine, noted: Iterable[pb.MoveEffect]) -> None:
    """Does what a checkpoint has of moves, once the objects that it has are made. An object that has left and is coming
    back is one of these, and stays."""
    effects = list(noted)
    coming = {one.object_id for each in effects if each.state != pb.MOVE_STATE_LEFT for one in each.objects}
    for effect in effects:
        if effect.state != pb.MOVE_STATE_LEFT:
            apply(engine, effect)
            continue
        for each in effect.objects:
            if each.object_id in coming:
                engine.registry.moved.left(each.object_id, each.name, effect.owner, effect.move)
            else:
                engine.registry.leave(each.object_id, each.name, effect.owner, effect.move)


def _arrive(engine: Engine, effect: pb.MoveEffect) -> None:
    moves, registry = engine.moves, engine.registry
    is_whole = effect.state == pb.MOVE_STATE_ARRIVED
    objects = {each.object_id: each.name for each in effect.objects}
    reserved: list[str] = []
    try:
        for object_id, name in objects.items():
            registry.reserve(object_id, name, effect.owner)
            reserved.append(name)
    except BaseException:
        for name in reserved:
            registry.moved.unreserve(name)
        raise
    arrival = Arrival(effect.move, effect.owner, objects, is_whole, tuple(effect.runs))
    moves.arrivals[effect.move] = arrival
    moves.held.update(dict.fromkeys(objects, arrival))


def _accept(engine: Engine, arrival: Arrival) -> None:
    for object_id, name in arrival.objects.items():
        engine.registry.show(object_id, name)
        engine.moves.held.pop(object_id, None)
    found = filter(None, map(engine.registry.get, arrival.objects))
    engine.contexts.runs.restore(applied_runs(arrival.runs, found))


def moves_of(engine: Engine) -> Iterator[pb.MoveEffect]:
    """The effects from which an owner that starts again knows what has left, and what has arrived."""
    for object_id, place in list(engine.registry.moved.by_id.items()):
        yield made(pb.MOVE_STATE_LEFT, place.move, place.owner, {object_id: place.name})
    for each in list(engine.moves.arrivals.values()):
        state = pb.MOVE_STATE_ARRIVED if each.is_whole else pb.MOVE_STATE_ARRIVING
        effect = made(state, each.move, each.owner, each.objects)
        effect.runs.extend(each.runs)
        yield effect


def made(state: pb.MoveState, move: str, owner: str, objects: dict[str, str]) -> pb.MoveEffect:
    """An effect on objects, by id their names."""
    listed = [pb.MovedObject(object_id=object_id, name=name) for object_id, name in objects.items()]
    return pb.MoveEffect(state=state, move=move, owner=owner, objects=listed)
