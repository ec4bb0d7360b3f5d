"""Makes the objects of a new owner from those of others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ps_service.durability import table_states, value_files
from ps_service.durability.resharding.merging import different_moments, same
from ps_service.durability.resharding.objects import request_of
from ps_service.durability.store import CheckpointError
from ps_service.requests.creation import messages_in
from ps_service.tables.contents import BLOCK_ROWS
from ps_wire.codec.values import Encoder
from ps_wire.refs import new_object_id
from ps_wire.v1 import checkpoint_pb2 as pb
from ps_wire.v1.values_pb2 import Handle

if TYPE_CHECKING:
    from ps_service.durability.resharding.objects import Objects
    from ps_service.durability.resharding.source import Source
    from ps_service.durability.resharding.split_table import SplitTable
    from ps_service.durability.tensors import TensorWriter
    from ps_wire.tables.routing import Routing
    from ps_wire.v1.values_pb2 import Value


@dataclass
class OfTable:
    """An optimizer or scheduler of a table: its record and the checkpoint of each owner, in the order of the owners."""

    name: str
    records: list[pb.ObjectRecord]
    sources: list[Source]

    def state(self) -> Any:
        """Its state, which is the same on all owners, or a `CheckpointError` is raised."""
        states = [
            value_files.load(record.state, record.tensors, source.tensors)
            for record, source in zip(self.records, self.sources, strict=True)
        ]
        if not all(same(states[0], each) for each in states[1:]):
            raise CheckpointError(
                f"the owners do not agree on the options of {self.name!r}: set them again for all, with set_options(), "
                "before the owners are stopped"
            )
        return states[0]


def of_table(table: SplitTable, objects: Mapping[str, Objects]) -> list[OfTable]:
    """The optimizers and schedulers of a table, each after what it was made with."""
    found: dict[str, OfTable] = {}
    for owner in table.routing.owners:
        for record, name in objects[owner].of_tables:
            if name == table.name:
                each = found.setdefault(record.name, OfTable(record.name, [], []))
                each.records.append(record)
                each.sources.append(objects[owner].source)
    for each in found.values():
        if len(each.records) < len(table.parts):
            raise different_moments(f"not all owners of table {table.name!r} have {each.name!r}")
    return list(found.values())


@dataclass
class Records:
    """Makes the records of one new owner.

    `homes` has for each owner before the new owner that gets its other objects; `policies` those of optimizers over
    several owners, by name.
    """

    owner: str
    homes: Mapping[str, str]
    policies: Mapping[str, Value]
    tensors: TensorWriter

    def others(self, objects: Objects) -> Iterator[pb.ObjectRecord]:
        """Objects that go from one owner to this one as they are."""
        for given in objects.others:
            record = pb.ObjectRecord()
            record.CopyFrom(given)
            for message in (request_of(record), record.value, record.state):
                for handle in messages_in(message, Handle) if message is not None else ():
                    handle.owner = self.homes.get(handle.owner, handle.owner)
            if not record.name:
                record.dependency_only = True
            self._copy_tensors(given, record, objects.source)
            if record.HasField("optimizer"):
                had = list(record.rounds.owners)
                if owners := sorted({self.homes.get(each, each) for each in had}):
                    if owners != had:
                        if (policy := self.policies.get(record.name)) is not None:
                            record.policy.CopyFrom(policy)  # one that follows may not have heard of the last change
                        _begin_rounds(record, owners)
                else:
                    record.rounds.ClearField("trainers")  # their sessions are over
            yield record

    def of_table(self, table: SplitTable, routing: Routing, others: Sequence[OfTable]) -> Iterator[pb.ObjectRecord]:
        """This owner's rows of a table, and its optimizers and schedulers."""
        first = table.parts[0]
        made = _new(first.record)
        self._copy_tensors(first.record, made, first.source, only_payload=True)
        for item in made.create.kwargs.dict.items:
            if item.key.text == "owners":
                item.value.Clear()
                Encoder(None).encode_into(item.value, list(routing.owners))
        rows = table.rows_of(routing, self.owner, BLOCK_ROWS)
        state = {"routing": routing.to_plain(), table_states.BLOCKS: rows, **table.rest}
        table_states.store(state, made.state, made.tensors, self.tensors, table.name)
        yield made
        ids = {first.record.object_id: made.object_id}
        for each in others:
            given, source = each.records[0], each.sources[0]
            record = _new(given)
            ids[given.object_id] = record.object_id
            for handle in messages_in(request_of(record), Handle):
                handle.owner, handle.object_id = self.owner, ids[handle.object_id]
            self._copy_tensors(given, record, source, only_payload=True)
            record.version = max(own.version for own in each.records)
            value_files.store(each.state(), record.state, record.tensors, self.tensors, each.name)
            if record.HasField("optimizer"):
                if given.HasField("policy"):
                    record.policy.CopyFrom(given.policy)
                _begin_rounds(record, routing.owners)
            yield record

    def _copy_tensors(
        self, given: pb.ObjectRecord, record: pb.ObjectRecord, source: Source, only_payload: bool = False
    ) -> None:
        if given.payload:
            record.payload = self.tensors.add(given.payload, source.tensors.get(given.payload))
        if not only_payload:
            record.tensors[:] = [self.tensors.add(name, source.tensors.get(name)) for name in given.tensors]


def _new(given: pb.ObjectRecord) -> pb.ObjectRecord:
    """An object made in the same way, with an id of its own, so that no handle of before refers to it."""
    made = pb.ObjectRecord(object_id=new_object_id(), name=given.name, class_name=given.class_name)
    request_of_new = getattr(made, given.WhichOneof("made") or "create")
    request_of_new.CopyFrom(request_of(given))
    if given.HasField("frozen"):
        made.frozen.CopyFrom(given.frozen)
    return made


def _begin_rounds(record: pb.ObjectRecord, owners: Sequence[str]) -> None:
    """Has an optimizer begin its rounds anew: no trainer is left whose gradients could be in them."""
    record.rounds.Clear()
    spanned = list(owners) if len(owners) > 1 else []
    record.optimizer.owners[:] = spanned
    if record.HasField("policy"):
        record.rounds.owners.extend(spanned)
