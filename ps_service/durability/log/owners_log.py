"""The log of an owner, as requests see it."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary, WeakSet

from ps_service.durability.log.gradient_forms import GradientForms
from ps_service.durability.log.table_log import TableLog
from ps_service.durability.log.watermark import Watermark
from ps_service.numerics import generators
from ps_service.parameters.locks import StepLock
from ps_service.training.prepared import LITTLE_BYTES
from ps_wire.errors import StorageError
from ps_wire.runtime.locks import ReportingLock
from ps_wire.v1 import checkpoint_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ps_service.durability.log.log import Log
    from ps_service.durability.log.mode import Mode
    from ps_service.engine import Engine
    from ps_service.group.peers import Over
    from ps_service.hosting.objects import HostedObject
    from ps_service.sessions.effects import CallKind
    from ps_service.training.prepared import Prepared
    from ps_wire.codec.payload import PayloadWriter
    from ps_wire.refs import ContextId
    from ps_wire.v1.operations_pb2 import LogStatus

_MOST_KINDS: Final = 4096
"""Most kinds of calls of which is remembered that they change something."""


class OwnersLog:
    """The log of an owner, as requests see it."""

    def __init__(self, engine: Engine, log: Log, mode: Mode, grown: Callable[[], int]) -> None:
        self.engine = engine
        self.log = log
        self.acknowledges = mode.acknowledges
        self._mode = mode
        # Bytes of the log since the newest checkpoint.
        self._grown = grown
        self.watermark = Watermark(log)
        self.turn = StepLock(engine.parameter_locks.this_thread)
        self._guard = threading.Lock()
        self._locks: WeakKeyDictionary[HostedObject, StepLock] = WeakKeyDictionary()
        # The states of torch's default generators, as the last record has them.
        self._generator = b""
        # Held while a record is written that has them: an older state must not come behind a newer one, and what a
        # request has drawn must not be in the record of another that is not there yet.
        self._drawing = ReportingLock()
        # The position behind the last note that a pass was opened.
        self.opened_at = 0
        self.came_at = 0
        # Ids of the objects that the log or the checkpoint before it has as they are.
        self.known = {each.ref.object_id for each in engine.registry.objects()}
        # Objects that could not be written.
        self.unkept: WeakSet[HostedObject] = WeakSet()
        # Used by who has the turn.
        self.forms = GradientForms()
        # Whether steps of rows have to be appended as the rows that result.
        self.needs_images = False
        self.tables: WeakKeyDictionary[HostedObject, TableLog] = WeakKeyDictionary()
        # Records of what has changed that could not be appended yet.
        self._owed: deque[tuple[bytes, list[memoryview]]] = deque()
        self._owing = ReportingLock()
        # By kinds of calls of which the last has changed something: the bytes of its record.
        self._changing: dict[CallKind, int] = {}
        for each in engine.registry.objects():
            self.watch(each)

    def lock_of(self, hosted: HostedObject) -> StepLock:
        """What calls hold that may change an object which is no module."""
        with self._guard:
            lock = self._locks.get(hosted)
            if lock is None:
                lock = self._locks[hosted] = StepLock(self.engine.parameter_locks.this_thread)
            return lock

    def watch(self, hosted: HostedObject) -> None:
        """Has what changes the rows of a table appended from now on; other objects do not tell."""
        with self._guard:
            if hosted.is_table and hosted not in self.tables:
                self.tables[hosted] = made = TableLog(hosted.ref.object_id, self.check, self.append)
                hosted.value.shard.tell(made)

    @contextmanager
    def with_images(self) -> Iterator[None]:
        """A block, one at a time, in which rows are read at different moments: changes that are appended meanwhile can
        be made again on rows of any later one."""
        self.needs_images = True
        try:
            yield
        finally:
            self.needs_images = False

    def check_call(self, kind: CallKind) -> None:
        """Raises `StorageError` if such a call has changed something the last time, and the log has no room for as
        much: it would change that again, and be refused afterwards."""
        nbytes, log = self._changing.get(kind), self.log
        if nbytes is None:
            return
        # In most cases without the cost of a call.
        if log.end + nbytes + LITTLE_BYTES > log.room or log.trouble is not None or self._owed:
            self.check(nbytes)

    def append(self, record: pb.LogRecord, payload: PayloadWriter, kind: CallKind | None = None) -> int:
        """Appends a record, of a call of a `kind`. If that is a `StorageError`, the changes in it are appended later,
        before all others."""
        try:
            message = record.SerializeToString()
            if kind is not None:
                if len(self._changing) >= _MOST_KINDS:
                    self._changing.clear()
                self._changing[kind] = len(message) + payload.nbytes
            if not self._owed:
                return self.log.append(message, payload.chunks)
            with self._owing:
                self._append_owed()
                return self.log.append(message, payload.chunks)
        except OSError as error:
            for name in ("answer", "answer_offset", "answer_nbytes", "granted"):
                record.ClearField(name)  # the answer will be another one
            with self._owing:
                # What the payload refers to will change.
                self._owed.append((record.SerializeToString(), [memoryview(bytes(each)) for each in payload.chunks]))
            reason = error.strerror or str(error)
            raise StorageError(f"{reason}; what the request has changed may be gone when the owner restarts") from error

    def append_with_drawn(self, record: pb.LogRecord, payload: PayloadWriter, kind: CallKind | None = None) -> int:
        """As `append`, with the states of torch's default generators if code has drawn since the last record that has
        them."""
        with self._drawing:
            self._note_drawn(record)
            return self.append(record, payload, kind)

    def append_if_drawn(self, record: pb.LogRecord, payload: PayloadWriter, kind: CallKind | None = None) -> None:
        """As `append_with_drawn`, if code has drawn. If not, the call has changed nothing."""
        with self._drawing:
            if self._note_drawn(record):
                self.append(record, payload, kind)
            elif kind is not None:
                self._changing.pop(kind, None)

    def _note_drawn(self, record: pb.LogRecord) -> bool:
        generator = generators.states(self.engine.device)
        if generator == self._generator:
            return False
        record.generator = self._generator = generator
        return True

    def settle(self) -> None:
        """Appends what could not be appended before. Raises `StorageError`."""
        try:
            if self._owed:
                with self._owing:
                    self._append_owed()
        except OSError as error:
            raise StorageError(error.strerror or str(error)) from error

    def _append_owed(self) -> None:
        while self._owed:
            self.log.append(*self._owed[0])
            self._owed.popleft()

    def check(self, nbytes: int) -> None:
        """As `Effects.check`. What is kept for steps that are prepared is left to them."""
        self._check(nbytes + LITTLE_BYTES + self.engine.prepared.log_bytes)

    def check_prepared(self, step: Prepared) -> None:
        """Raises `StorageError` if the log has no room for a step that was prepared, although that was kept for it."""
        self._check(step.log_bytes)

    def _check(self, nbytes: int) -> None:
        self.settle()
        try:
            self.log.check(nbytes)
        except OSError as error:
            raise StorageError(error.strerror or str(error)) from error

    def when_synced(self, position: int, callback: Callable[[StorageError | None], object]) -> None:
        """As `EffectLog.when_synced`."""

        def synced(error: OSError | None) -> None:
            callback(
                None if error is None else StorageError(f"{error.strerror}; whether the change stays is not known")
            )

        self.log.when_synced(position, synced)

    def when_all_synced(self, callback: Callable[[StorageError | None, int], object]) -> None:
        """As `EffectLog.when_all_synced`."""
        end = self.log.end

        def synced(error: OSError | None) -> None:
            failed = None if error is None else StorageError(f"{error.strerror}; what is on the disk is not known")
            callback(failed, end)

        self.log.when_synced(end, synced, hurry=True)

    def durable_version(self, object_id: str) -> int:
        """As `EffectLog.durable_version`."""
        hosted = self.engine.registry.get(object_id)
        return 0 if hosted is None else self.watermark.durable(hosted.value)

    @property
    def end(self) -> int:
        """As `EffectLog.end`."""
        return self.log.end

    @property
    def state(self) -> str:
        """As `EffectLog.state`."""
        return "failed" if self.log.has_failed else "writable" if self.log.trouble is None else "full"

    @property
    def why(self) -> str:
        """As `EffectLog.why`."""
        trouble = self.log.trouble
        return "" if trouble is None else trouble.strerror or str(trouble)

    def describe(self, message: LogStatus) -> None:
        """As `EffectLog.describe`."""
        log, lag = self.log, self.log.lag
        message.mode, message.state, message.why = str(self._mode), self.state, self.why
        message.position, message.synced, message.bytes = log.end, log.synced, log.nbytes
        message.unsynced_records, message.unsynced_bytes, message.unsynced_seconds = lag
        message.checkpoint_bytes = self._grown()

    def began(self) -> None:
        """Notes the start of the owner."""
        started = pb.LogRecord(incarnation=self.engine.incarnations.current, owner=self.engine.name)
        self.log.append(started.SerializeToString())

    def came(self, trainer: bytes, identity: str) -> None:
        """Notes that the session of a trainer has begun, and whose it is."""
        began = pb.Effect(session_began=trainer, identity=identity)
        self.came_at = self._note(pb.LogRecord(effects=[began])) or self.came_at

    def opened(self, id: ContextId, caller: bytes) -> None:
        """Notes that a pass is used for the first time: it is lost if the owner is killed. Most trainers say themselves
        which passes that were."""
        session = self.engine.sessions.get(caller)
        if session is not None and session.tells_last_pass and caller == id.trainer:
            return
        self.opened_at = self._note(pb.LogRecord(trainer=id.trainer, opened=id.number)) or self.opened_at

    def over(self, id: ContextId, over: Over) -> None:
        """Notes that a pass is over, if steps of it were prepared and not made; and others."""
        prepared = self.engine.prepared
        for each in prepared.end(id, over):
            self._note(pb.LogRecord(trainer=each.trainer, over=each.number))

    def ended(self, trainer: bytes) -> None:
        """As `EffectLog.ended`."""
        self._note(pb.LogRecord(effects=[pb.Effect(session_ended=trainer)]))

    def _note(self, record: pb.LogRecord) -> int | None:
        # If it cannot be written, nothing that would matter changes any more.
        with suppress(OSError):
            return self.log.append(record.SerializeToString())
        return None
