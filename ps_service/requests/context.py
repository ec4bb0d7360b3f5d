"""Exchange: one request on its way through an owner."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ps_service.group.peers import Foreign
from ps_service.passes import calls
from ps_service.passes.arguments import Arguments
from ps_wire.codec import dtypes
from ps_wire.codec.payload import Buffer, PayloadReader, PayloadWriter
from ps_wire.codec.values import Decoder, Encoder

if TYPE_CHECKING:
    from ps_service.engine import Engine
    from ps_service.execution.deferred import Deferred
    from ps_service.hosting.objects import HostedObject
    from ps_service.passes.calls import Recording
    from ps_wire.v1.operations_pb2 import ObjectInfo
    from ps_wire.v1.values_pb2 import Handle, Value


class RequestContext:
    """Reads the values of a request and writes those of its reply.

    Args:
        engine: The owner.
        trainer: Who asks.
        payload: The request's tensor bytes, if they stand beside it.
        inline: Whether the reply's tensor bytes go into its message, for want of a payload.

    Attributes:
        engine: The owner.
        trainer: Who asks.
        payload: The request's tensor bytes.
        written: The reply's payload.
        granted: Ids of the objects to which the reply hands out a reference.
        borrowed: Handles of other owners' objects to which it hands out one.
        recording: Under which context the call is recorded, if it is.
        deferred: A result that has to be there before the reply can be written.
    """

    def __init__(self, engine: Engine, trainer: bytes, payload: Buffer | None = None, inline: bool = False) -> None:
        self.engine = engine
        self.payload = payload
        self.written = PayloadWriter()
        self.granted: list[str] = []
        self.borrowed: list[Foreign] = []
        self.recording: Recording | None = None
        self.deferred: Deferred | None = None
        self.trainer = trainer
        self._reader = PayloadReader(payload)
        self._inline = inline
        self._granting = threading.Lock()
        self._given_back = False
        self._began = time.perf_counter()

    @property
    def seconds(self) -> float:
        """How long ago the request was taken up."""
        return time.perf_counter() - self._began

    def read(self, message: Value) -> Any:
        """The value of a message; handles in it are looked up."""
        return self._read(message, Arguments(self.engine))

    def read_arguments(self, args: Value, kwargs: Value) -> tuple[Arguments, tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call."""
        arguments = Arguments(self.engine, self.recording.context if self.recording is not None else None)
        positional = self._read(args, arguments) if args.WhichOneof("kind") else ()
        named = self._read(kwargs, arguments) if kwargs.WhichOneof("kind") else {}
        return arguments, tuple(positional), dict(named)

    def write(self, message: Value, value: Any) -> None:
        """Encodes a value into a part of the reply."""
        # Not kept: it remembers the tensors, and an exchange that held it would hold itself, until the collector comes.
        Encoder(None if self._inline else self.written, self._reference).encode_into(message, value)

    def grant(self, hosted: HostedObject) -> None:
        """The reply hands the trainer a reference."""
        with self._granting:
            self.engine.registry.grant(self.trainer, hosted)
            self.granted.append(hosted.ref.object_id)
            if self._given_back:
                self._revoke()

    def describe(self, message: ObjectInfo, hosted: HostedObject) -> None:
        """Fills in what a trainer needs to use an object, and grants it a reference."""
        self.grant(hosted)
        message.handle.CopyFrom(hosted.ref.to_message())
        message.class_name = hosted.class_name
        message.name = hosted.name
        message.methods.extend(hosted.methods())
        for name, parameter in hosted.parameters.items():
            message.parameters.add(
                name=name,
                dtype=dtypes.to_wire(parameter.dtype),
                shape=parameter.shape,
                requires_grad=parameter.requires_grad,
            )

    def defer(self, deferred: Deferred, finish: Callable[[Any], None]) -> None:
        """The reply is written by `finish`, once the result is there."""
        self.deferred = deferred
        self._finish = finish

    def let_go(self) -> None:
        """The payload has been read, and is kept by none but those who use it."""
        self.payload = None
        self._reader = PayloadReader()

    def complete(self) -> None:
        """Writes the reply that was deferred.

        Raises:
            Exception: Whatever there is instead of a result.
        """
        assert self.deferred is not None
        self._finish(self.deferred.result())

    def release(self, object_ids: Iterable[str]) -> None:
        """The trainer gives references back."""
        self.engine.registry.revoke(self.trainer, object_ids)

    @property
    def abandoned(self) -> bool:
        """Whether nobody waits for the reply any more."""
        return self._given_back

    def give_back(self) -> None:
        """Takes the granted references back: the reply will not be sent.

        The operation may go on in its thread, when its caller was cancelled; what it grants then is taken back as well.
        """
        with self._granting:
            self._given_back = True
            self._revoke()
        if self.deferred is not None:
            self.deferred.drop()

    def _revoke(self) -> None:
        self.engine.registry.revoke(self.trainer, self.granted)
        self.granted.clear()

    def _read(self, message: Value, arguments: Arguments) -> Any:
        return Decoder(self._reader, arguments.handle, arguments.tensor, self.engine.allowlist.named).decode(message)

    def _reference(self, value: Any) -> Handle | None:
        context = self.recording.context if self.recording is not None else None
        reference = self.engine.peers.departing(value, context)
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
