"""Collects what requests change, and appends it to the log with their answers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from ps_service.durability import held_gradients, members, prepared_steps
from ps_service.durability.log import unkept
from ps_service.durability.log.owners_log import OwnersLog
from ps_service.durability.log.storage import RecordStorage
from ps_service.durability.log.table_log import RequestRows, record_bytes
from ps_service.durability.object_records import object_record
from ps_service.durability.object_states import CannotBeKept, buffers_of, state_of
from ps_service.requests import round_messages
from ps_service.sessions.reply_cache import BEING_WRITTEN, Answer
from ps_service.tables.stand_in import AllRows
from ps_service.training.optimizers import HostedOptimizer
from ps_service.training.prepared import LITTLE_BYTES
from ps_wire.codec.payload import PayloadWriter
from ps_wire.codec.values import Encoder
from ps_wire.errors import PsError
from ps_wire.v1 import checkpoint_pb2 as pb
from ps_wire.v1.operations_pb2 import CallRequest

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from google.protobuf.message import Message

    from ps_service.group.formation import MemberEntry
    from ps_service.hosting.objects import HostedObject
    from ps_service.parameters.locks import StepLock
    from ps_service.policies.offers import OfferKey
    from ps_service.sessions.effects import CallKind
    from ps_service.training.following import Held
    from ps_service.training.optimizers import Present
    from ps_wire.attempts import Attempt
    from ps_wire.codec.payload import Buffer
    from ps_wire.refs import ContextId
    from ps_wire.v1.values_pb2 import Value

_PATIENCE_SECONDS: Final = 10.0
"""Seconds to wait for locks that running hosted code holds."""


class EffectsLog(OwnersLog):
    """The log of an owner that collects the effects of requests."""

    def begin(self, kind: CallKind | None = None) -> RequestEffects:
        """As `EffectLog.begin`."""
        if kind is not None:
            self.check_call(kind)
        return RequestEffects(self, kind)


class RequestEffects:
    """What one request changes."""

    def __init__(self, owner: OwnersLog, kind: CallKind | None) -> None:
        self._owner, self._kind = owner, kind
        self._record = pb.LogRecord()
        self._payload = PayloadWriter()
        self._changed: list[HostedObject] = []
        self._buffers: list[HostedObject] = []
        self._attempt: tuple[bytes, int] | None = None
        # Of optimizers: their versions with this record, and those before it.
        self._versions: list[tuple[HostedOptimizer, int, int]] = []
        self._has_turn = False
        self._keeps_answer = False
        self._pass: ContextId | None = None
        # Ids of objects that are in this record, and were not in the log before.
        self._new: set[str] = set()
        # Held until what their objects are now is in the log.
        self._alone: list[StepLock] = []
        self._rows: RequestRows | None = None

    def take_turn(self) -> None:
        """As `Effects.take_turn`."""
        if not self._has_turn:
            self._owner.turn.__enter__()
            self._has_turn = True

    @property
    def has_turn(self) -> bool:
        """As `Effects.has_turn`."""
        return self._has_turn

    def check(self, nbytes: int) -> None:
        """As `Effects.check`."""
        self._owner.check(nbytes)

    def _await_turn(self) -> None:
        """Takes a turn also where a thread must not wait: code has run, and must not begin again."""
        if not self._has_turn:
            self._owner.turn.acquire()
            self._has_turn = True

    def changes(self, hosted: HostedObject, alone: bool = False) -> None:
        """As `Effects.changes`."""
        if hosted in self._changed:
            return
        if alone:
            lock = self._owner.lock_of(hosted)
            lock.__enter__()
            self._alone.append(lock)
        self._changed.append(hosted)
        self._owner.watch(hosted)

    def changes_rows(self, table: HostedObject) -> None:
        """As `Effects.changes_rows`."""
        self.take_turn()
        self._owner.watch(table)
        self._add_if_new(table.ref.object_id)
        self._of_rows().changes(table)

    def uses_rows(self, table: HostedObject) -> None:
        """As `Effects.uses_rows`."""
        self._owner.watch(table)
        self._of_rows().uses(table)

    def _of_rows(self) -> RequestRows:
        if self._rows is None:
            owner = self._owner
            self._rows = RequestRows(owner.tables, self._record, self._payload, lambda: owner.needs_images)
        return self._rows

    def changes_buffers(self, hosted: HostedObject) -> None:
        """As `Effects.changes_buffers`."""
        if hosted not in self._buffers:
            self._buffers.append(hosted)

    def will_step(self, optimizer: HostedOptimizer, nbytes: int) -> None:
        """As `Effects.will_step`."""
        self.take_turn()
        of_pass = None if self._pass is None else self._owner.engine.prepared.of(self._pass).get(optimizer.object_id)
        if of_pass is None:
            self._owner.check(record_bytes(optimizer, nbytes))
        else:
            self._owner.check_prepared(of_pass)
        self._add_if_new(optimizer.object_id)

    def attempts(self, trainer: bytes, run: int) -> None:
        """As `Effects.attempts`."""
        self._attempt = trainer, run

    def steps(self, optimizer: HostedOptimizer, version: int, present: Sequence[Present], place: int) -> None:
        """As `Effects.steps`."""
        self._versions.append((optimizer, version, version - 1))
        step = self._record.effects.add().step
        step.object_id, step.version = optimizer.object_id, version
        if optimizer.beside:
            step.beside.update(optimizer.beside)
        if self._pass is not None and prepared_steps.refer(self._owner.engine, self._pass, step, optimizer, present):
            self.steps_rows(present)
        else:
            self.write_step(step, optimizer, version, present)
        if self._attempt is not None:
            self.add_attempt(self._attempt, optimizer, place, version)

    def prepares(
        self, optimizer: HostedOptimizer, id: ContextId, attempt: Attempt | None, present: Sequence[Present]
    ) -> None:
        """As `Effects.prepares`."""
        dense = sum(each.nbytes for _, _, each in present if not each.is_sparse)
        rows = sum(each._values().nbytes + each._indices().nbytes for _, _, each in present if each.is_sparse)
        kept = LITTLE_BYTES + record_bytes(optimizer, rows)
        self.take_turn()
        self._owner.check(record_bytes(optimizer, dense + rows) + kept)
        self._add_if_new(optimizer.object_id)
        prepared = prepared_steps.prepared(optimizer, attempt, present)._replace(log_bytes=kept)
        effect = self._record.effects.add().prepared
        prepared_steps.write(effect, id, optimizer.object_id, prepared)
        self.encode(effect.gradients, prepared_steps.named_gradients(present))
        self._owner.engine.prepared.put(id, optimizer.object_id, prepared)

    def in_pass(self, id: ContextId) -> None:
        """As `Effects.in_pass`."""
        self._pass = id

    def write_step(
        self, step: pb.StepEffect, optimizer: HostedOptimizer, version: int, present: Sequence[Present]
    ) -> None:
        """Writes a step with these gradients."""
        step.object_id, step.version = optimizer.object_id, version
        places = {id(each): place for place, each in enumerate(optimizer.parameters)}
        step.places.extend(places[id(covered.parameter)] for covered, _, _ in present)
        dense = [gradient for covered, _, gradient in present if not isinstance(covered.parameter, AllRows)]
        self._owner.forms.encode(optimizer, dense, step.gradients, self._payload)
        if len(dense) < len(present):
            self.steps_rows(present)

    def steps_rows(self, present: Sequence[Present]) -> None:
        """Adds what a step with these gradients has made of the rows of tables."""
        if any(isinstance(covered.parameter, AllRows) for covered, _, _ in present):
            self._of_rows().steps(present)

    def add_attempt(self, of: tuple[bytes, int], optimizer: HostedOptimizer, place: int, version: int) -> None:
        """Adds that an attempt of a pass has made a step, which has led to a version."""
        attempt = self._record.effects.add().attempt
        attempt.trainer, attempt.run = of
        attempt.object_id, attempt.place, attempt.version = optimizer.object_id, place, version

    def encode(self, message: Value, value: object) -> None:
        """Encodes a value into the record."""
        Encoder(self._payload).encode_into(message, value)

    def rounds_of(self, optimizer: HostedOptimizer) -> pb.RoundsEffect:
        """The effect of what the rounds of an optimizer decide. Takes a turn, also where a thread must not wait. What
        is not in the registry is in no record yet, or not any more: then it is the effect of none."""
        self._await_turn()
        self._add_if_new(optimizer.object_id)
        if not self._is_kept(optimizer.object_id):
            return pb.RoundsEffect()
        effect = self._record.effects.add().rounds
        effect.object_id = optimizer.object_id
        return effect

    def joins(self, optimizer: HostedOptimizer, trainer: bytes) -> None:
        """As `Effects.joins`."""
        self.rounds_of(optimizer).members.add(trainer=trainer)

    def leaves(self, optimizer: HostedOptimizer, trainer: bytes) -> None:
        """As `Effects.leaves`."""
        self.rounds_of(optimizer).left.append(trainer)

    def holds(self, optimizer: HostedOptimizer, key: OfferKey, held: Held) -> None:
        """As `Effects.holds`."""
        held_gradients.write_effect(self.rounds_of(optimizer).held, optimizer, key, held, self.encode)

    def lets_go(self, optimizer: HostedOptimizer, key: OfferKey) -> None:
        """As `Effects.lets_go`."""
        self.rounds_of(optimizer).released.append(round_messages.key_message(key))

    def has_version(self, optimizer: HostedOptimizer, before: int) -> None:
        """Notes that the record gives an optimizer the version that it has, in the place of the one before."""
        self._versions.append((optimizer, optimizer.version, before))

    def keep_answer(self) -> None:
        """As `Effects.keep_answer`."""
        self._keeps_answer = True

    def note(self) -> None:
        """Appends what was collected, without an answer, and ends the turn. Raises `StorageError`."""
        try:
            if self._rows is not None:
                self._rows.finish()
            if self._record.effects:
                self._write()
                self._record, self._payload = pb.LogRecord(), PayloadWriter()
        finally:
            self.abandon()

    def repeats(self, operation: str, request: Message, payload: Buffer | None) -> None:
        """As `Effects.repeats`."""
        if isinstance(request, CallRequest):
            self._add_if_new(request.target.object_id)  # a scheduler that the log did not have for a while
        again = self._record.effects.add().again
        getattr(again.request, operation).CopyFrom(request)
        if payload is not None:
            again.offset, again.nbytes = self._payload.add(payload.data), len(payload)

    def enters(self, entry: MemberEntry) -> None:
        """As `Effects.enters`."""
        self._record.effects.add().member.CopyFrom(members.record(entry))

    def moves(self, effect: pb.MoveEffect) -> None:
        """As `Effects.moves`."""
        self._record.effects.add().moved.CopyFrom(effect)

    def durable_version(self, object_id: str, version: int) -> int:
        """As `Effects.durable_version`."""
        return version if self._owner.acknowledges else self._owner.durable_version(object_id)

    def commit(self, trainer: bytes, number: int, answer: Answer) -> None:
        """As `Effects.commit`."""
        if answer.reply.HasField("error"):
            # The request itself: it has changed nothing, and would fail again.
            for each in [each for each in self._record.effects if each.HasField("again")]:
                self._record.effects.remove(each)
        try:
            if self._changed or self._buffers:
                self._await_turn()  # what is read must be in the log before others change it
            for hosted in self._changed:
                if self._owner.engine.registry.get(hosted.ref.object_id) is not None:
                    self._add_object(hosted)  # another one may have the name of what was removed meanwhile
            for hosted in self._buffers:
                self._add_buffers(hosted)
            for object_id in answer.granted:
                self._add_if_new(object_id)
            if self._rows is not None:
                for table in self._rows.used:
                    self._add_if_new(table.ref.object_id)
                self._rows.finish()
            if self._record.effects or answer.granted or self._keeps_answer:
                self._append(trainer, number, answer)
            else:
                # Asked again, it would draw later numbers.
                self._owner.append_if_drawn(self._record, self._payload, self._kind)
            if self._rows is not None and self._owner.acknowledges:
                answer.position = max(answer.position, self._rows.position)
            self._wait_for_passes(answer)
        finally:
            self.abandon()

    def _wait_for_passes(self, answer: Answer) -> None:
        """Has an answer wait until the disk knows of the passes that were opened: others would not be known as lost
        when the machine has crashed."""
        owner = self._owner
        if owner.acknowledges and owner.opened_at > max(answer.position, owner.log.synced) and not owner.log.has_failed:
            answer.position = owner.opened_at

    def abandon(self) -> None:
        """As `Effects.abandon`."""
        if self._rows is not None:
            self._rows.end()
        if self._has_turn:
            self._has_turn = False
            self._owner.turn.__exit__()
        while self._alone:
            self._alone.pop().__exit__()

    def pause(self) -> None:
        """As `Effects.pause`."""
        if self._record.effects:
            self._keeps_answer = True
            self.note()
        self.abandon()

    def _add_if_new(self, object_id: str) -> None:
        """Adds an object that the log does not have: it is being made by another request, which is not committed."""
        hosted = self._owner.engine.registry.get(object_id)
        if not self._has(object_id) and hosted is not None and hosted.history is None:
            self._await_turn()
            self._add_object(hosted)

    def _has(self, object_id: str) -> bool:
        return object_id in self._owner.known or object_id in self._new

    def _is_kept(self, object_id: str) -> bool:
        """Whether an object is there, and the log has it."""
        return self._owner.engine.registry.get(object_id) is not None and self._has(object_id)

    def _add_object(self, hosted: HostedObject) -> None:
        for dependency in hosted.creation_spec.dependencies if hosted.creation_spec is not None else ():
            self._add_if_new(dependency.ref.object_id)
        chunks, nbytes = len(self._payload.chunks), self._payload.nbytes
        try:
            storage = RecordStorage(self._payload)
            record = object_record(hosted, storage, self._state_of, lambda each: self._has(each.ref.object_id))
        except (CannotBeKept, PsError) as error:
            del self._payload.chunks[chunks:]
            self._payload.nbytes = nbytes
            unkept.note(self._owner, self._record, hosted, error, self._new)
            return  # checkpoints leave it out, too
        self._record.effects.add().object.CopyFrom(record)
        if isinstance(hosted.value, HostedOptimizer):
            self._versions.append((hosted.value, record.version, 0))
        self._new.add(hosted.ref.object_id)

    def _state_of(self, hosted: HostedObject) -> Any:
        if not hosted.is_table:
            return state_of(self._owner.engine, time.monotonic() + _PATIENCE_SECONDS, hosted)
        # Changes of its rows that are not in this state have to come after it.
        self._of_rows().lock(hosted.value.shard)
        return hosted.value.state_copy()

    def _add_buffers(self, hosted: HostedObject) -> None:
        self._add_if_new(hosted.ref.object_id)
        if not self._is_kept(hosted.ref.object_id):
            return  # it was removed while the call ran, or checkpoints leave it out, too
        effect = self._record.effects.add().buffers
        effect.object_id = hosted.ref.object_id
        try:
            self.encode(effect.buffers, buffers_of(hosted))
        except Exception:  # its state_dict may raise anything
            del self._record.effects[-1]
            self._add_object(hosted)

    def _append(self, trainer: bytes, number: int, answer: Answer) -> None:
        record, payload = self._record, self._payload
        record.trainer = trainer
        if number:
            record.answer.number = number
            record.answer.frame.CopyFrom(answer.frame)
        record.granted.extend(answer.granted)
        if answer.nbytes:
            record.answer_offset, record.answer_nbytes = payload.nbytes, answer.nbytes
            payload.chunks.extend(answer.chunks)
            payload.nbytes += answer.nbytes
        answer.position = BEING_WRITTEN  # without a turn, a checkpoint may begin once it is there
        answer.position = answer.frame.reply.position = self._write()

    def _write(self) -> int:
        self._owner.known |= self._new
        position = self._owner.append_with_drawn(self._record, self._payload, self._kind)
        for optimizer, version, before in self._versions:
            self._owner.watermark.note(optimizer, version, position, before)
        return position
