"""What owners know of objects that move between them, and what their successors have to know of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from ps_service.durability.resharding.source import Moved
from ps_service.durability.resharding.split_table import different_moments
from ps_service.durability.store import CheckpointError
from ps_wire.v1 import checkpoint_pb2 as pb

if TYPE_CHECKING:
    from ps_service.durability.resharding.source import Objects, Source


def moved_in(sources: Mapping[str, Source]) -> dict[str, Moved]:
    """What all owners know, by their names. An object is its old owner's until that one has noted that it has left.
    Raises `CheckpointError` if it has noted that, and the new one does not have all of it."""
    found = {owner: Moved() for owner in sources}
    for owner, source in sources.items():
        for effect in source.checkpoint.moves:
            if effect.state == pb.MOVE_STATE_LEFT:
                found[owner].left.update(dict.fromkeys(_ids(effect), effect))
    # Before anything is settled: an object that has come back has not left any more.
    left = {(object_id, each.move) for own in found.values() for object_id, each in own.left.items()}
    for owner, source in sources.items():
        for effect in source.checkpoint.moves:
            if effect.state != pb.MOVE_STATE_LEFT:
                _settle(owner, effect, found[owner], effect.owner in sources, left)
    return found


def _settle(owner: str, effect: pb.MoveEffect, own: Moved, is_given: bool, left: set[tuple[str, str]]) -> None:
    """Notes what has come to an owner, from one that is given or not."""
    ids, is_whole = _ids(effect), effect.state == pb.MOVE_STATE_ARRIVED
    if any((object_id, effect.move) in left for object_id in ids):
        if not is_whole:
            names = ", ".join(repr(each.name) for each in effect.objects)
            raise different_moments(f"{names} has left {effect.owner!r} for {owner!r}, which does not have all of it")
        for object_id in ids:
            own.left.pop(object_id, None)
        own.runs.extend(effect.runs)
    elif is_given or not is_whole:
        own.copies.update(ids)
    else:
        own.coming.append(effect)


def noted(owner: str, objects: Mapping[str, Objects], homes: Mapping[str, str]) -> Iterator[pb.MoveEffect]:
    """What a new owner has to know: where those objects are which the owners had that it succeeds, and which of its
    objects are another owner's. Raises `CheckpointError` if that one is succeeded, and its checkpoint is not given."""
    there = {object_id: homes[before] for before, own in objects.items() for object_id in own.real if before in homes}
    succeeded = [own.moved for before, own in objects.items() if homes.get(before) == owner]
    left = [item for own in succeeded for item in own.left.items()]
    # The later one of two moves has the larger id, and its effect comes last.
    for object_id, effect in sorted(left, key=lambda item: item[1].move):
        after = there.get(object_id) or (homes.get(effect.owner) if effect.owner in objects else effect.owner)
        if after and after != owner:
            name = next(each.name for each in effect.objects if each.object_id == object_id)
            moved = pb.MoveEffect(state=effect.state, move=effect.move, owner=after)
            moved.objects.add(object_id=object_id, name=name)
            yield moved
    for effect in (effect for own in succeeded for effect in own.coming):
        if effect.owner == owner:
            names = ", ".join(repr(each.name) for each in effect.objects)
            raise CheckpointError(
                f"{names} was moving from owner {owner!r} when the owners ended, and only the checkpoint of that owner "
                "tells whose it is: give it, too"
            )
        yield effect


def _ids(effect: pb.MoveEffect) -> list[str]:
    return [each.object_id for each in effect.objects]
