"""Collects what requests change, and appends it to the log with their answers."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

import torch

from ps_service.durability.log.storage import RecordStorage
from ps_service.durability.object_records import object_record
from ps_service.durability.object_states import CannotBeKept, state_of
from ps_service.parameters.locks import StepLock
from ps_wire.codec.payload import PayloadWriter
from ps_wire.codec.values import Encoder
from ps_wire.errors import InvalidArgumentError, StorageError
from ps_wire.v1 import checkpoint_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from google.protobuf.message import Message

    from ps_service.durability.log.log import Log
    from ps_service.engine import Engine
    from ps_service.hosting.objects import HostedObject
    from ps_service.sessions.reply_cache import Answer
    from ps_service.training.optimizers import HostedOptimizer, Present
    from ps_wire.codec.payload import Buffer
    from ps_wire.refs import ContextId


_PATIENCE_SECONDS: Final = 10.0
"""Seconds to wait for locks that running hosted code holds."""

_LITTLE: Final = 64 * 1024
"""Bytes that are free in the log before a request begins, besides twice its payload."""


class OwnersLog:
    """The log of an owner, as requests see it."""

    def __init__(self, engine: Engine, log: Log, acknowledges: bool) -> None:
        self.engine = engine
        self.log = log
        self.acknowledges = acknowledges
        self.turn = StepLock(engine.parameter_locks.this_thread)
        self._guard = threading.Lock()
        self._locks: WeakKeyDictionary[HostedObject, StepLock] = WeakKeyDictionary()
        # Of torch, as the last record has it.
        self.generator = b""
        # The position behind the last note that a pass was opened.
        self.opened_at = 0
        self.came_at = 0
        # Ids of the objects that the log or the checkpoint before it has as they are.
        self.known = {each.ref.object_id for each in engine.registry.objects()}

    def begin(self) -> RequestEffects:
        """As `EffectLog.begin`."""
        return RequestEffects(self)

    def lock_of(self, hosted: HostedObject) -> StepLock:
        """What calls hold that may change an object which is no module."""
        with self._guard:
            lock = self._locks.get(hosted)
            if lock is None:
                lock = self._locks[hosted] = StepLock(self.engine.parameter_locks.this_thread)
            return lock

    def check(self, nbytes: int) -> None:
        """As `Effects.check`."""
        try:
            self.log.check(nbytes + _LITTLE)
        except OSError as error:
            raise StorageError(error.strerror or str(error)) from error

    def when_synced(self, position: int, callback: Callable[[StorageError | None], object]) -> None:
        """As `EffectLog.when_synced`."""

        def synced(error: OSError | None) -> None:
            callback(
                None if error is None else StorageError(f"{error.strerror}; whether the change stays is not known")
            )

        self.log.when_synced(position, synced)

    def began(self) -> None:
        """Notes the start of the owner."""
        self.log.append(pb.LogRecord(incarnation=self.engine.incarnations.current).SerializeToString())

    def came(self, trainer: bytes) -> None:
        """Notes that the session of a trainer has begun."""
        self.came_at = self._note(pb.LogRecord(effects=[pb.Effect(session_began=trainer)])) or self.came_at

    def opened(self, id: ContextId) -> None:
        """Notes that a pass is used for the first time: it is lost if the owner is killed."""
        self.opened_at = self._note(pb.LogRecord(trainer=id.trainer, opened=id.number)) or self.opened_at

    def ended(self, trainer: bytes) -> None:
        """As `EffectLog.ended`."""
        self._note(pb.LogRecord(effects=[pb.Effect(session_ended=trainer)]))

    def _note(self, record: pb.LogRecord) -> int | None:
        # If it cannot be written, nothing that would matter changes any more.
        with suppress(OSError):
            return self.log.append(record.SerializeToString())
        return None


class RequestEffects:
    """What one request changes."""

    def __init__(self, owner: OwnersLog) -> None:
        self._owner = owner
        self._record = pb.LogRecord()
        self._payload = PayloadWriter()
        self._changed: list[HostedObject] = []
        self._buffers: list[HostedObject] = []
        self._attempt: tuple[bytes, int] | None = None
        self._has_turn = False
        # Ids of objects that are in this record, and were not in the log before.
        self._new: set[str] = set()
        # Held until what their objects are now is in the log.
        self._alone: list[StepLock] = []

    def take_turn(self) -> None:
        """As `Effects.take_turn`."""
        if not self._has_turn:
            self._owner.turn.__enter__()
            self._has_turn = True

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

    def changes_buffers(self, hosted: HostedObject) -> None:
        """As `Effects.changes_buffers`."""
        if hosted not in self._buffers:
            self._buffers.append(hosted)

    def will_step(self, optimizer: HostedOptimizer, nbytes: int) -> None:
        """As `Effects.will_step`."""
        self.take_turn()
        self._owner.check(nbytes)
        self._add_if_new(optimizer.object_id)

    def attempts(self, trainer: bytes, run: int) -> None:
        """As `Effects.attempts`."""
        self._attempt = trainer, run

    def steps(self, optimizer: HostedOptimizer, version: int, present: Sequence[Present], place: int) -> None:
        """As `Effects.steps`."""
        step = self._record.effects.add().step
        step.object_id, step.version = optimizer.object_id, version
        places = {id(each): place for place, each in enumerate(optimizer.parameters)}
        step.places.extend(places[id(covered.parameter)] for covered, _, _ in present)
        Encoder(self._payload).encode_into(step.gradients, [gradient for _, _, gradient in present])
        if self._attempt is not None:
            attempt = self._record.effects.add().attempt
            attempt.trainer, attempt.run = self._attempt
            attempt.object_id, attempt.place = optimizer.object_id, place

    def repeats(self, operation: str, request: Message, payload: Buffer | None) -> None:
        """As `Effects.repeats`."""
        again = self._record.effects.add().again
        getattr(again.request, operation).CopyFrom(request)
        if payload is not None:
            again.offset, again.nbytes = self._payload.add(payload.data), len(payload)

    def commit(self, trainer: bytes, number: int, answer: Answer) -> None:
        """As `Effects.commit`."""
        if answer.reply.HasField("error"):
            self._drop_repeated()
        try:
            if self._changed or self._buffers:
                self._await_turn()  # what is read must be in the log before others change it
            for hosted in self._changed:
                self._add_object(hosted)
            for hosted in self._buffers:
                self._add_buffers(hosted)
            for object_id in answer.granted:
                self._add_if_new(object_id)
            if self._record.effects or answer.granted:
                answer.position = self._append(trainer, number, answer)
            elif self._draws():
                # Asked again, it would draw later numbers.
                self._owner.log.append(self._record.SerializeToString())
            self._wait_for_passes(answer)
        except OSError as error:
            # What has changed is written with the next change of an object, and until then it is not acknowledged.
            self._owner.known.clear()
            self._owner.generator = b""
            reason = error.strerror or str(error)
            raise StorageError(f"{reason}; what the request has changed may be gone when the owner restarts") from error
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
        if self._has_turn:
            self._has_turn = False
            self._owner.turn.__exit__()
        while self._alone:
            self._alone.pop().__exit__()

    def pause(self) -> None:
        """As `Effects.pause`."""
        self.abandon()

    def _drop_repeated(self) -> None:
        """Drops the request itself: it has failed, has changed nothing, and would fail again."""
        left = [each for each in self._record.effects if each.WhichOneof("kind") != "again"]
        del self._record.effects[:]
        self._record.effects.extend(left)

    def _draws(self) -> bool:
        """Whether code has drawn from torch's default generator since the last record. That has its state."""
        generator = torch.get_rng_state().numpy().tobytes()
        if generator == self._owner.generator:
            return False
        self._record.generator = self._owner.generator = generator
        return True

    def _add_if_new(self, object_id: str) -> None:
        """Adds an object that the log does not have: it is being made by another request, which is not committed."""
        hosted = self._owner.engine.registry.get(object_id)
        if not self._has(object_id) and hosted is not None and hosted.history is None:
            self._await_turn()
            self._add_object(hosted)

    def _has(self, object_id: str) -> bool:
        return object_id in self._owner.known or object_id in self._new

    def _add_object(self, hosted: HostedObject) -> None:
        for dependency in hosted.creation_spec.dependencies if hosted.creation_spec is not None else ():
            self._add_if_new(dependency.ref.object_id)
        try:
            record = object_record(
                hosted,
                RecordStorage(self._payload),
                partial(state_of, self._owner.engine, time.monotonic() + _PATIENCE_SECONDS),
                lambda dependency: self._has(dependency.ref.object_id),
            )
        except (CannotBeKept, InvalidArgumentError):
            return  # checkpoints leave it out, too
        self._record.effects.add().object.CopyFrom(record)
        self._new.add(hosted.ref.object_id)

    def _add_buffers(self, hosted: HostedObject) -> None:
        self._add_if_new(hosted.ref.object_id)
        kept = hosted.value.state_dict(keep_vars=True).keys()
        effect = self._record.effects.add().buffers
        effect.object_id = hosted.ref.object_id
        with ExitStack() as stack:
            for lock in hosted.internals.norm_locks.values():
                stack.enter_context(lock)
            buffers = {name: each.detach().clone() for name, each in hosted.value.named_buffers() if name in kept}
        Encoder(self._payload).encode_into(effect.buffers, buffers)

    def _append(self, trainer: bytes, number: int, answer: Answer) -> int:
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
        self._draws()
        position = self._owner.log.append(record.SerializeToString(), payload.chunks)
        self._owner.known |= self._new
        return position
