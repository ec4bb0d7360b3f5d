"""The context of one request: its values, its reply, and the references that it grants."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch

from ps_service.access.identities import asking
from ps_service.access.namespaces import within
from ps_service.group.peers import Foreign
from ps_service.passes import calls
from ps_service.passes.arguments import Arguments
from ps_service.quotas.accounts import Account
from ps_service.requests import tables
from ps_service.sessions.reply_cache import Answer
from ps_wire.codec import dtypes
from ps_wire.codec.payload import Buffer, PayloadReader, PayloadWriter
from ps_wire.codec.values import Decoder, Encoder
from ps_wire.errors import InvalidArgumentError, StorageError, TooLargeError
from ps_wire.limits import MAX_FRAME_BYTES
from ps_wire.refs import Ref
from ps_wire.runtime.noop import noop

if TYPE_CHECKING:
    from contextvars import Token

    from google.protobuf.message import Message

    from ps_service.access.identities import Asker
    from ps_service.engine import Engine
    from ps_service.execution.deferred import Deferred
    from ps_service.hosting.objects import HostedObject, Method
    from ps_service.hosting.references import RRef
    from ps_service.passes.arguments import Recording
    from ps_service.requests.probe import Probe
    from ps_service.requests.progress import Progress
    from ps_service.sessions.effects import CallKind, EffectLog, Effects
    from ps_wire.v1.frames_pb2 import Frame
    from ps_wire.v1.operations_pb2 import CallRequest, CreateRequest, ObjectInfo, SchedulerRequest
    from ps_wire.v1.values_pb2 import Handle, Value


_log = logging.getLogger(__name__)

_IN_TURN: Final = frozenset(
    (
        "delete",
        "leave",
        "load_state",
        "optimizer",
        "register",
        "release",
        "scheduler",
        "set_options",
        "set_requires_grad",
    )
)
"""Operations that change something at once. Others run hosted code before, and take their turn later, or change nothing
that the log has."""

_CHANGING: Final = _IN_TURN - {"release"} | {"attach", "create"}
"""Operations that cannot be done if the log has no room."""

_CPU: Final = torch.device("cpu")

_granting: Final = threading.Lock()
"""Held for microseconds, while references are granted, or given back because a request was given up."""


@dataclass(slots=True, eq=False)
class RequestContext:
    """Reads the values of a request and writes those of its reply.

    `method` is the one that is called, once it was looked up. The tensor bytes of the reply are part of its message
    if it `embeds` them, because it has no payload. A deferred reply has its `frame` meanwhile, and the payload if it
    `keeps_payload`. `began` is on the clock of `time.perf_counter`. Of an `abandoned` request the reply will not be
    sent, because it has another answer. One that `may_restart` runs code on the event loop that may make requests: it
    restarts in a thread if the code does. `after` takes what its answer need not wait for; None if it is to wait. The
    `effects` collect what the request changes, if the owner has a log; then the `number` of the request is known. The
    answer that is `committed` with them is in the log once it has a position. The
    `asker` is None where nobody is asked who it is. A `caller` without a session is known by its address and
    certificate. One of the log that `is_replayed` has no event. What it makes again counts for `made_for`.
    """

    engine: Engine
    trainer: bytes
    payload: Buffer | None = None
    embeds: bool = False
    granted: list[str] = field(default_factory=list)
    borrowed: list[Foreign] = field(default_factory=list)
    recording: Recording | None = None
    result_id: str = ""
    deferred: Deferred | None = None
    keeps_payload: bool = False
    progress: Progress | None = None
    probe: Probe | None = None
    frame: Frame | None = None
    began: float = field(default_factory=time.perf_counter)
    abandoned: bool = False
    method: Method | None = None
    may_restart: bool = False
    after: list[Callable[[], object]] | None = None
    effects: Effects | None = None
    committed: Answer | None = None
    number: int = 0
    asker: Asker | None = None
    caller: Mapping[str, str] | None = None
    is_replayed: bool = False
    made_for: Account | None = None
    _reader: PayloadReader | None = None
    _written: PayloadWriter | None = None
    _found: HostedObject | None = None
    _finish: Callable[[Any], None] = noop

    def by(self) -> Mapping[str, str]:
        """Who has sent the request, for the audit log."""
        session = self.engine.sessions.get(self.trainer)
        return (self.caller or {}) if session is None else session.by()

    @property
    def made(self) -> tuple[int, Answer] | None:
        """The number of the request, if it has one, and its answer, once that may be in the log."""
        return None if self.committed is None or not self.number else (self.number, self.committed)

    @property
    def account(self) -> Account:
        """What counts what it makes: that of its sender as it was admitted, wherever its session is by now."""
        if self.made_for is not None:
            return self.made_for
        asker = self.asker
        if asker is None:
            return self.engine.sessions.account_of(self.trainer)
        return Account(asker.identity.name, asker.namespace)

    def restart(self) -> None:
        """Resets the context, because the first try has stopped. What it has changed stays in `progress`."""
        self.recording = None
        self.result_id = ""
        self._reader = self._written = self._found = self.method = None

    def begin_as(self) -> Token[Asker | None]:
        """Has objects be looked up for its sender from now on, until the token is given back."""
        self._found = None
        return asking.set(self.asker)

    def find(self, message: Handle) -> HostedObject:
        """The object, or one of those, that the request is for. Raises as `Registry.find`."""
        # The rule that decides whether a request runs inline and its handler look up the same object.
        found = self._found
        if found is None or found.ref.object_id != message.object_id:
            found = self._found = self.engine.registry.find(Ref.from_message(message))
        return found

    def read(self, message: Value, once: bool = False) -> Any:
        """The value of a message; handles in it are looked up. `once` is that of `Decoder`."""
        return self._decoder(Arguments(self.engine), once).decode(message)

    def read_plain(self, message: Value) -> Any:
        """The value of a message. Handles in it stay references, and functions by name are refused."""
        if self._reader is None:
            self._reader = PayloadReader(self.payload)
        return Decoder(self._reader).decode(message)

    def read_arguments(
        self, request: CallRequest | CreateRequest | SchedulerRequest, results: CallRequest | None = None
    ) -> tuple[Arguments, tuple[Any, ...], dict[str, Any]]:
        """The arguments of a request, and the positional and the keyword arguments among them as values.

        `results` is the request if its arguments may be results that stay on this owner.
        """
        found, recording = self._found, self.recording
        # Rows of tables are in the memory of the CPU, wherever modules are.
        device = _CPU if found is not None and found.is_table else None
        arguments = Arguments(self.engine, None if recording is None else recording.context, results, device)
        if self.effects is not None:
            arguments.uses_rows = self.effects.uses_rows
        has_args, has_kwargs = request.HasField("args"), request.HasField("kwargs")
        if not has_args and not has_kwargs:
            return arguments, (), {}
        arguments.nbytes = self.embedded_size(request) if self.payload is None else len(self.payload)
        decoder = self._decoder(arguments, once=True)
        positional = tuple(decoder.decode(request.args)) if has_args else ()
        return arguments, positional, dict(decoder.decode(request.kwargs)) if has_kwargs else {}

    @staticmethod
    def embedded_size(request: CallRequest | CreateRequest | SchedulerRequest) -> int:
        """The bytes of the arguments of a request without a payload."""
        return request.args.ByteSize() + request.kwargs.ByteSize()

    def write(self, message: Value, value: Any, once: bool = False) -> None:
        """Encodes a value into a field of the reply; `once` is that of `Encoder`."""
        if value is None:
            message.none.SetInParent()
            return
        if self._written is None and not self.embeds:
            self._written = PayloadWriter()
        # The encoder is not kept: it keeps the tensors, and would be part of a reference cycle.
        Encoder(self._written, self._reference, once).encode_into(message, value)

    def append(self, payload: Buffer) -> int:
        """Appends bytes to the payload of the reply, without a copy; returns where they begin."""
        if self._written is None:
            self._written = PayloadWriter()
        return self._written.add(payload.data) if len(payload) else self._written.nbytes

    def keep(self, result: RRef) -> None:
        """Keeps a result under the id that the caller has chosen, and grants a reference to it. Raises
        `InvalidArgumentError` if the id is in use, and `OverloadedError` if the trainer holds too much already."""
        self.grant(calls.hosted(self.engine, result, self.trainer, self.result_id))

    def answer(self, frame: Frame) -> Answer:
        """The answer whose reply was written into a frame. Raises `TooLargeError` if no message may be as large."""
        written, borrowed = self._written, self.borrowed
        if borrowed:
            frame.reply.borrowed.extend(each.ref.to_message() for each in borrowed)
        if self.granted:
            frame.reply.granted.extend(self.granted)
        chunks, nbytes = ([], 0) if written is None else (written.chunks, written.nbytes)
        if nbytes > (limit := self.engine.limits.max_message_bytes):
            raise TooLargeError(
                f"the reply has {nbytes:,} bytes of tensors; the limit is {limit:,}. "
                "Ask for less at a time, or raise max_message_bytes on the owner"
            )
        if frame.ByteSize() > MAX_FRAME_BYTES:
            # It would break the stream, also when it is sent again.
            raise TooLargeError(
                f"the reply has {frame.ByteSize():,} bytes besides its tensors; at most {MAX_FRAME_BYTES:,} are "
                "allowed. Return large data as tensors"
            )
        held = [each.held for each in borrowed] if borrowed else ()
        return Answer(frame, chunks, nbytes, self.granted, held, bool(self.result_id))

    def grant(self, hosted: HostedObject) -> None:
        """Grants the trainer a reference, and notes it for the reply."""
        with _granting:
            self.engine.registry.grant(self.trainer, hosted)
            self.granted.append(hosted.ref.object_id)
            if self.abandoned:
                self._revoke()

    def describe(self, message: ObjectInfo, hosted: HostedObject) -> None:
        """Describes an object to the trainer, and grants it a reference."""
        self.grant(hosted)
        message.handle.CopyFrom(hosted.ref.to_message())
        message.class_name, message.name = hosted.class_name, within(hosted.name)
        message.methods.extend(hosted.methods())
        message.unmarked.extend(hosted.not_marked())
        for name, parameter in hosted.parameters.items():
            message.parameters.add(
                name=name,
                dtype=dtypes.to_wire(parameter.dtype),
                shape=parameter.shape,
                requires_grad=parameter.requires_grad,
            )

    def begin_effects(self, log: EffectLog, operation: str, request: Any) -> None:
        """Collects what the request changes. Raises `StorageError` if there is no room for what it changes for sure."""
        self.effects = effects = log.begin(_kind(request) if operation == "call" else None)
        if operation in _IN_TURN:
            effects.take_turn()
        if operation in _CHANGING:
            try:
                effects.check(0 if self.payload is None else 2 * len(self.payload))
            except StorageError:
                self.abandon()
                raise

    def repeats(self, operation: str, request: Message) -> None:
        """Notes that the request changes the same whenever it runs in its order among the others."""
        if self.effects is not None:
            self.effects.repeats(operation, request, self.payload)

    def commit(self, number: int, answer: Answer) -> None:
        """Appends what has changed and the answer to the log. Raises `StorageError`."""
        effects, self.effects = self.effects, None
        if effects is not None:
            self.committed = answer
            try:
                effects.commit(self.trainer, number or self.number, answer)
            except BaseException:
                self.committed = None  # the answer will be another one
                raise

    def abandon(self) -> None:
        """Drops what was collected, because the request will run again."""
        effects, self.effects = self.effects, None
        if effects is not None:
            effects.abandon()

    def defer(self, deferred: Deferred, finish: Callable[[Any], None], reads: bool = False) -> None:
        """Defers the reply: `finish` writes it, once the result is there. Drops the result if nothing waits for it. If
        `finish` `reads` the request again, the payload is kept until then."""
        self.keeps_payload = reads
        self._finish = finish
        with _granting:
            self.deferred = deferred
            abandoned = self.abandoned
        if abandoned:
            deferred.drop()

    def run_after(self) -> None:
        """Does what the answer did not wait for, in order."""
        after, self.after = self.after, None
        for each in after or ():
            try:
                each()
            except BaseException:  # what follows gives locks back
                _log.exception("a request of trainer %s failed after its answer", self.trainer.hex()[:8])

    def catch_up(self) -> None:
        """Does already what the answer did not wait for so far, because this thread would wait for that itself."""
        if self.after:
            self.run_after()
            self.after = []

    def let_go(self) -> None:
        """Drops the payload, because it was read. Values that use its memory keep it."""
        self.payload = None
        self._reader = PayloadReader()
        self._found = None

    def complete(self) -> None:
        """Writes the deferred reply. Raises the exception that came instead of a result."""
        assert self.deferred is not None
        # Not kept: most such functions refer to this context, and the cycle would keep the tensors of the reply.
        finish, self._finish = self._finish, noop
        finish(self.deferred.result())

    def forget_deferred(self) -> None:
        """Drops what would write the deferred reply, because the request was given up. It refers to this context."""
        assert self.deferred is not None
        self._finish = noop
        self.deferred.forget()

    def give_back(self) -> None:
        """Takes the granted references back, because the reply will not be sent. The operation may go on in its thread:
        what it grants then is taken back, too."""
        with _granting:
            self.abandoned = True
            self._revoke()
            deferred = self.deferred
        if deferred is not None:
            deferred.drop()

    def _revoke(self) -> None:
        self.engine.registry.revoke(self.trainer, self.granted)
        self.granted.clear()

    def _decoder(self, arguments: Arguments, once: bool = False) -> Decoder:
        if self._reader is None:
            self._reader = PayloadReader(self.payload)
        named = self.engine.allowlist.named
        handle = arguments.handle
        if self.effects is not None and self.effects.has_turn:
            handle = partial(_own, handle, self.engine.name)
        table = partial(tables.table, self.engine, self.trainer, self.asker, self.made_for is None, arguments)
        return Decoder(self._reader, handle, arguments.tensor, named, arguments.result, once, table)

    def _reference(self, value: Any) -> Handle | None:
        context = self.recording.context if self.recording is not None else None
        reference = self.engine.membership.peers.departing(value, context)
        if reference is None:
            return None
        if isinstance(reference, Foreign):
            self.borrowed.append(reference)
            message = reference.ref.to_message()
            message.history = reference.token is not None
            return message
        hosted = calls.hosted(self.engine, reference, self.trainer)
        self.grant(hosted)
        message = hosted.ref._replace(parameter=reference.parameter).to_message()
        message.history = hosted.history is not None and hosted.history.context == context
        return message


def _kind(call: CallRequest) -> CallKind:
    return call.function, call.target.object_id, call.method, call.training, call.own_mode


def _own(handle: Callable[[Handle], Any], owner: str, message: Handle) -> Any:
    """What `handle` makes of a handle, for requests that others wait for, the event loop among them: the owner of an
    object elsewhere cannot be asked then."""
    if message.owner != owner:
        raise InvalidArgumentError(
            f"this request takes no handle to an object of another owner, such as {message.owner!r}: it is of {owner!r}"
        )
    return handle(message)
