"""The objects of a checkpoint, by what becomes of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ps_service.durability.store import CheckpointError
from ps_service.requests.creation import messages_in
from ps_wire.tables import names
from ps_wire.v1.values_pb2 import Handle

if TYPE_CHECKING:
    from ps_service.durability.resharding.source import Source
    from ps_wire.v1 import checkpoint_pb2 as pb


def request_of(record: pb.ObjectRecord) -> Any:
    """The request that an object is made from; None for a value."""
    kind = record.WhichOneof("made")
    return None if kind in (None, "value") else getattr(record, kind)


@dataclass
class Objects:
    """The objects of one owner.

    `tables` has the name of each table, by object id. `of_tables` are the optimizers and schedulers of tables, each
    with the name of the table, and after what it was made with. `others` are all other objects with a name, and those
    that they were made with, which come first. `left_out` counts those without a name: they belonged to trainers, which
    begin anew.
    """

    source: Source
    tables: dict[str, str] = field(default_factory=dict)
    of_tables: list[tuple[pb.ObjectRecord, str]] = field(default_factory=list)
    others: list[pb.ObjectRecord] = field(default_factory=list)
    left_out: int = 0

    @property
    def named(self) -> list[str]:
        """Names of the other objects."""
        return [record.name for record in self.others if record.name]


def objects_in(source: Source) -> Objects:
    """Sorts the objects of a checkpoint."""
    found = Objects(source)
    by_id = {record.object_id: record for record in source.checkpoint.objects}
    table_of: dict[str, str] = {}
    plain: list[pb.ObjectRecord] = []
    for record in source.checkpoint.objects:
        if record.class_name == names.SHARD:
            found.tables[record.object_id] = table_of[record.object_id] = record.name
            continue
        wanted = {table_of[used] for used in _used(record) if used in table_of}
        if not wanted:
            plain.append(record)
            continue
        made = record.WhichOneof("made")
        if len(wanted) > 1 or made not in ("optimizer", "scheduler") or not _used(record) <= table_of.keys():
            raise CheckpointError(
                f"{record.class_name} {record.name!r} of {source.owner} was made with {' and '.join(sorted(wanted))}, "
                "and cannot be moved: delete it before the owners are stopped, and make it again afterwards"
            )
        (table,) = wanted
        table_of[record.object_id] = table
        found.of_tables.append((record, table))
    kept: set[str] = set()
    for record in reversed(plain):
        if (record.name and not record.dependency_only) or record.object_id in kept:
            kept |= {record.object_id} | (_used(record) & by_id.keys())
    found.others = [record for record in plain if record.object_id in kept]
    found.left_out = len(plain) - len(found.others)
    return found


def _used(record: pb.ObjectRecord) -> set[str]:
    """Ids of the objects that an object was made with."""
    request = request_of(record)
    return set() if request is None else {handle.object_id for handle in messages_in(request, Handle)}
