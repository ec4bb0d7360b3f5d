"""Calls methods and functions on an owner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from ps_wire.codec.payload import PayloadReader, PayloadWriter
from ps_wire.codec.values import Encoder, Instead
from ps_wire.runtime.failures import Origin
from ps_wire.v1.frames_pb2 import Frame, Reply
from trainer_client.graph.current import current_context
from trainer_client.handles.arrivals import all_there, seconds_left
from trainer_client.handles.pending_call import PendingCall, WatchedCall
from trainer_client.handles.references import RRef, handle_message, receive, unrecorded
from trainer_client.numerics import write_numerics
from trainer_client.pending import DEFAULT, Pending
from trainer_client.session.watched import begin

if TYPE_CHECKING:
    from ps_wire.runtime.failures import PassFailures
    from ps_wire.v1.values_pb2 import Handle
    from trainer_client.graph.recorder import RecordedCall, RecordingPass, Reserved
    from trainer_client.graph.way_back import Encode
    from trainer_client.session.session import Session
    from trainer_client.session.watched import Watch


class CallOptions(NamedTuple):
    """How a call is made.

    Attributes:
        training: Whether modules run in training mode; None for the mode that each has on its owner.
        timeout: Seconds this may take; None is no limit.
        seed: Seed of its random numbers, instead of the client's next.
        kind: How it is called, for profiles and traces.
        what: Name of what is called, for profiles and traces; empty for the name of the method or function.
    """

    training: bool | None = True
    timeout: float | None = DEFAULT
    seed: int | None = None
    kind: str = "call"
    what: str = ""


USUAL: Final = CallOptions()


def call(
    session: Session,
    target: RRef | str,
    method: str,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    options: CallOptions = USUAL,
    *,
    keep: bool = False,
    encode: Encode | None = None,
) -> Pending[Any]:
    """Calls a method or function on an owner; inside a context, and with grad enabled, the call is recorded.

    Args:
        session: The session with the owner.
        target: The object, or the name of a function.
        method: Name of the method; empty for `forward`.
        args: The arguments. A `Pending` among them, also in a container, stands for its result.
        kwargs: The keyword arguments.
        options: How it is made.
        keep: Whether the result stays on the owner; the result of the call is then a handle to it.
        encode: Encodes the gradients of the result before they are sent. No argument is a `Pending` then.

    Raises:
        NotAllowedError, UnknownMethodError: The method or function cannot be called.
        RemoteError: It raised an exception.
    """
    context = current_context()
    made = _Call(session, target, method, args, kwargs, context)
    made.request.training = options.training is not False
    if options.training is None:
        made.request.own_mode = True
    if keep:
        made.request.keep = keep
    try:
        encoded = made.encode()
    except _NotYet:
        encoded = None
    seed = options.seed
    if seed is None:
        seed = session.settings.seeding.next(context.seeds if context is not None else None)
    write_numerics(made.request, seed)
    seconds = session.settings.seconds(options.timeout)
    if session.is_watched():
        what = options.what or _kind_of(target, method)
        made.watch = begin(session.settings, session.owner, made.frame, options.kind, what)
    in_graph = context is not None and torch.is_grad_enabled()
    of_pass = None if context is None else context.failures
    if encoded is not None:
        recorded = made.record(encoded[1]) if in_graph else None
        if recorded is not None and encode is not None:
            recorded.encode_gradients(encode)
        return made.send(encoded[0], recorded, seconds, of_pass)
    reserved = context.reserve(session) if context is not None and in_graph else None
    whole = Pending.run(session.loop, made.send_later(reserved, seconds))
    whole.origin = Origin(target, method, of_pass)
    return whole


class _NotYet(Exception):
    """An argument is the result of a call that has not come yet, and that does not stay on the owner."""


class _Call:
    """A call on its way into its request.

    Args:
        session: The session with the owner.
        target: The object, or the name of a function.
        method: Name of the method; empty for `forward`.
        args: The arguments.
        kwargs: The keyword arguments.
        context: The context that it is made in.

    Attributes:
        frame: Its frame.
        request: Its request, in the frame.
        watch: What is noted about it, if it is watched.
    """

    __slots__ = ("_args", "_context", "_follows", "_handles", "_kwargs", "_of", "_session", "frame", "request", "watch")

    def __init__(
        self,
        session: Session,
        target: RRef | str,
        method: str,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        context: RecordingPass | None,
    ) -> None:
        self._session = session
        self._of = target, method
        self._args, self._kwargs = args, kwargs
        self._context = context
        self.frame = Frame()
        self.request = request = self.frame.request.call
        self.watch: Watch | None = None
        # The object, and the handles among the arguments.
        self._handles: list[RRef] = []
        # The calls whose results, which stay on the owner, are arguments.
        self._follows: list[PendingCall] = []
        if isinstance(target, RRef):
            handle, ref = request.target, target.ref
            handle.owner, handle.object_id = ref.owner, ref.object_id
            if ref.parameter:
                handle.parameter = ref.parameter
            request.method = method
        else:
            request.function = target

    def encode(self) -> tuple[PayloadWriter | None, Sequence[torch.Tensor]]:
        """Encodes the arguments; returns the bytes of the tensors, and the tensors.

        Raises:
            _NotYet: The value of an argument is not here yet.
            InvalidArgumentError: An argument cannot be sent.
        """
        target = self._of[0]
        self._handles = [target] if isinstance(target, RRef) else []
        if not (self._args or self._kwargs):
            return None, ()
        payload = PayloadWriter()
        encoder = Encoder(payload, self._other, once=True)
        if self._args:
            encoder.encode_into(self.request.args, self._args)
        if self._kwargs:
            encoder.encode_into(self.request.kwargs, dict(self._kwargs))
        return payload, encoder.tensors

    def _other(self, value: Any) -> Handle | Instead | int | None:
        """What is sent in the place of a value that the codec does not know."""
        if not isinstance(value, Pending):
            return handle_message(self._handles, self._context, value)
        rref = value.stay(self._session, self._context) if isinstance(value, PendingCall) else None
        if rref is not None and isinstance(value, PendingCall):
            results = self.request.results
            if rref.ref.object_id not in results:
                self._handles.append(rref)
                self._follows.append(value)
                results.append(rref.ref.object_id)
            return list(results).index(rref.ref.object_id)
        if not value.settled:
            raise _NotYet
        try:
            return Instead(value.result())
        except Exception as error:
            raise _NotYet from error  # the result of this call will be an error, too

    def record(self, arguments: Sequence[torch.Tensor], reserved: Reserved | None = None) -> RecordedCall:
        """Writes it into the graph of its context, at the place that was reserved for it."""
        context, session, request = self._context, self._session, self.request
        assert context is not None
        inputs = [tensor for tensor in arguments if tensor.requires_grad]
        tokens = [token for rref in self._handles if (token := rref.token(context.id)) is not None]
        latency = session.backwards.of((request.target.object_id, request.method or request.function))
        recorded = context.record(session, inputs, tokens, latency, reserved)
        request.context.CopyFrom(context.message)
        request.call = recorded.number
        if len(recorded.place) > 1:
            request.place.extend(recorded.place)
        return recorded

    def send(
        self,
        payload: PayloadWriter | None,
        recorded: RecordedCall | None,
        seconds: float | None,
        of_pass: PassFailures | None,
    ) -> PendingCall:
        """Sends it; returns its result."""
        session = self._session
        # Keeps the handles among the arguments alive until the call has run.
        read = partial(_result, session, recorded, (self._args, self._kwargs, self._handles))
        given = session, self.frame, payload, seconds, read, self._follows
        pending = PendingCall(*given) if self.watch is None else WatchedCall.of(self.watch, *given)
        pending.origin = Origin(*self._of, of_pass, None if recorded is None else self._context, recorded)
        session.send(pending)
        return pending

    async def send_later(self, reserved: Reserved | None, seconds: float | None) -> Any:
        """Sends it once the results among its arguments have come; returns its result."""
        left, encoded = seconds_left(seconds), None
        while encoded is None:
            await all_there((self._args, self._kwargs), self._stays, left)
            for field in ("args", "kwargs", "results"):
                self.request.ClearField(field)
            self._follows.clear()
            try:
                encoded = self.encode()
            except _NotYet as error:
                # Without a cause, the owner has lost a result that was to stay there.
                if error.__cause__ is not None:
                    raise error.__cause__ from None
        payload, tensors = encoded
        recorded = None
        if reserved is not None:
            with torch.enable_grad():  # grad mode counted when the call was made
                recorded = self.record(tensors, reserved)
        # Its pass hears of a failure from the whole.
        return await self.send(payload, recorded, left(), None)

    def _stays(self, pending: Pending[Any]) -> bool:
        """Whether it can take a result without waiting for it."""
        return isinstance(pending, PendingCall) and pending.stay(self._session, self._context) is not None


def _result(
    session: Session, recorded: RecordedCall | None, held: tuple[object, ...], reply: Reply, payload: PayloadReader
) -> Any:
    if recorded is None:
        if reply.call.result.HasField("none"):
            return None
        return unrecorded(session, payload).decode(reply.call.result)
    return receive(session, reply.call.result, payload, recorded)


def _kind_of(target: RRef | str, method: str) -> str:
    """What a call calls, for profiles and traces, which count calls of the same name: without the id of the object."""
    if isinstance(target, str):
        return target
    return ".".join(filter(None, (getattr(target, "class_name", ""), method or "forward")))
