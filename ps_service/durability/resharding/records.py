"""Makes the objects of a new owner from those of others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from ps_service.durability import value_files
from ps_service.durability.resharding.source import request_of
from ps_service.durability.resharding.split_table import Part, SplitTable, different_moments, same
from ps_service.durability.store import CheckpointError
from ps_service.tables.applied_steps import AppliedStep, added, digest_of, to_plain
from ps_service.tables.shard import BLOCK_ROWS
from ps_wire.codec.messages import messages_in
from ps_wire.codec.values import Encoder
from ps_wire.refs import new_object_id
from ps_wire.v1 import checkpoint_pb2 as pb
from ps_wire.v1.values_pb2 import Handle

if TYPE_CHECKING:
    from ps_service.durability.resharding.source import Objects, Source
    from ps_service.durability.tensors import TensorWriter
    from ps_service.tables.applied_steps import Applied
    from ps_wire.tables.routing import Routing
    from ps_wire.v1.values_pb2 import Value


def of_table(table: SplitTable, objects: Mapping[str, Objects]) -> dict[str, list[Part]]:
    """The optimizers and schedulers of a table by name, on its owners in order; each after what it was made with."""
    found: defaultdict[str, list[Part]] = defaultdict(list)
    for owner in table.routing.owners:
        for record, name in objects[owner].of_tables:
            if name == table.name:
                found[record.name].append(Part(objects[owner].source, record))
    for name, parts in found.items():
        if len(parts) < len(table.parts):
            raise different_moments(f"not all owners of table {table.name!r} have {name!r}")
    return found


def state_of(name: str, parts: Sequence[Part]) -> Any:
    """The state of an optimizer or scheduler, which is the same on all owners, or a `CheckpointError` is raised."""
    states = [value_files.load(each.record.state, each.record.tensors, each.source.tensors) for each in parts]
    if not all(same(states[0], each) for each in states[1:]):
        raise CheckpointError(
            f"the owners do not agree on the options of {name!r}: set them again for all, with set_options(), before "
            "the owners are stopped"
        )
    return states[0]


@dataclass
class Records:
    """Makes the records of one new owner. `policies` has those of optimizers over several owners, by name."""

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
            if given.payload:
                record.payload = self._copied(given.payload, objects.source)
            record.tensors[:] = [self._copied(name, objects.source) for name in given.tensors]
            if record.HasField("optimizer"):
                record.beside.clear()
                record.beside.update({self.homes.get(each, each): version for each, version in given.beside.items()})
                if self._begins_anew(given):
                    if (policy := self.policies.get(record.name)) is not None:
                        record.policy.CopyFrom(policy)  # one that follows may not have heard of the last change
                    _begin_rounds(record, sorted({self.homes.get(each, each) for each in given.rounds.owners}))
                elif not given.rounds.owners:
                    record.rounds.ClearField("trainers")  # their sessions are over
            yield record

    def runs(self, objects: Objects) -> Iterator[pb.RunRecord]:
        """What their optimizers had applied of passes that may be run again."""
        versions = {each.object_id: each.version for each in objects.others if self._begins_anew(each)}
        for run in objects.runs:
            yield _without_rounds(run, versions[run.object_id]) if run.object_id in versions else run

    def _begins_anew(self, record: pb.ObjectRecord) -> bool:
        """Whether rounds over owners begin anew, because one of these has another name now."""
        return any(self.homes.get(each, each) != each for each in record.rounds.owners)

    def of_table(
        self, table: SplitTable, routing: Routing, others: Mapping[str, Sequence[Part]]
    ) -> Iterator[pb.ObjectRecord]:
        """This owner's rows of a table, and its optimizers and schedulers."""
        first = table.parts[0]
        made = self._new(first.record, first.source)
        for item in made.create.kwargs.dict.items:
            if item.key.text == "owners":
                item.value.Clear()
                Encoder(None).encode_into(item.value, list(routing.owners))
        rows = table.rows_of(routing, self.owner, BLOCK_ROWS)
        ownership = {**routing.to_plain(), "applied": to_plain(_applied(table, others))}
        state = {"routing": ownership, value_files.BLOCKS: rows, **table.rest}
        value_files.store_table(state, made.state, made.tensors, self.tensors, table.name)
        yield made
        ids = {first.record.object_id: made.object_id}
        for name, parts in others.items():
            given = parts[0].record
            record = self._new(given, parts[0].source)
            ids[given.object_id] = record.object_id
            for handle in messages_in(request_of(record), Handle):
                handle.owner, handle.object_id = self.owner, ids[handle.object_id]
            record.version = max(each.record.version for each in parts)
            value_files.store(state_of(name, parts), record.state, record.tensors, self.tensors, name)
            if record.HasField("optimizer"):
                if given.HasField("policy"):
                    record.policy.CopyFrom(given.policy)
                _begin_rounds(record, routing.owners)
            yield record

    def _new(self, given: pb.ObjectRecord, source: Source) -> pb.ObjectRecord:
        """An object made in the same way, with an id of its own, so that no handle of before refers to it."""
        made = pb.ObjectRecord(object_id=new_object_id(), name=given.name, class_name=given.class_name)
        made.identity, made.namespace = given.identity, given.namespace
        getattr(made, given.WhichOneof("made") or "create").CopyFrom(request_of(given))
        if given.HasField("frozen"):
            made.frozen.CopyFrom(given.frozen)
        if given.payload:
            made.payload = self._copied(given.payload, source)
        return made

    def _copied(self, name: str, source: Source) -> str:
        """Copies a tensor; returns its name in the new checkpoint."""
        return self.tensors.add(name, source.tensors.get(name))


def _applied(table: SplitTable, others: Mapping[str, Sequence[Part]]) -> Applied:
    """The steps of passes that may be run again which were applied to rows, with the slots of these."""
    applied = table.applied
    for part in (part for parts in others.values() for part in parts):
        slots = table.slots[part.source.owner]
        given = (each for each in part.source.checkpoint.runs if each.object_id == part.record.object_id)
        runs = [_without_rounds(each, part.record.version) for each in given]
        steps = (AppliedStep(digest_of(each.trainer), each.run, place) for each in runs for place in each.places)
        applied = added(applied, dict.fromkeys(steps, slots))
    return applied


def _without_rounds(run: pb.RunRecord, version: int) -> pb.RunRecord:
    """What an optimizer with a version had applied, without gradients of an open round, which lead to a later one."""
    made = pb.RunRecord(trainer=run.trainer, run=run.run, object_id=run.object_id)
    for place, led_to in zip_longest(run.places, run.versions[: len(run.places)], fillvalue=0):
        if led_to <= version:
            made.places.append(place)
            made.versions.append(led_to)
    return made


def _begin_rounds(record: pb.ObjectRecord, owners: Sequence[str]) -> None:
    """Has an optimizer begin its rounds anew: no trainer is left whose gradients could be in them."""
    record.rounds.Clear()
    spanned = list(owners) if len(owners) > 1 else []
    record.optimizer.owners[:] = spanned
    if record.HasField("policy"):
        record.rounds.owners.extend(spanned)
