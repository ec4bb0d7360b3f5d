"""Calls methods and functions on an owner. Results may stay there when only later calls need them."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ps_wire.codec.payload import PayloadReader, PayloadWriter
from ps_wire.codec.values import Encoder, Instead
from ps_wire.errors import PsError
from ps_wire.refs import Ref, new_object_id
from ps_wire.runtime.scopes import LEAST_SECONDS_LEFT
from ps_wire.v1.frames_pb2 import Frame, Reply
from trainer_client.graph.current import current_context
from trainer_client.handles.arrivals import all_there, seconds_left
from trainer_client.handles.references import Reference, RRef, fetch_in, handle_message, receive, unrecorded
from trainer_client.handles.titles import kind_of, title_of
from trainer_client.numerics import write_numerics
from trainer_client.pending import DEFAULT, Pending, raiser
from trainer_client.session.in_flight import InFlightRequest
from trainer_client.session.watched import Watched, begin

if TYPE_CHECKING:
    from ps_wire.runtime.failures import Origin
    from ps_wire.v1.operations_pb2 import CallRequest
    from ps_wire.v1.values_pb2 import Handle
    from trainer_client.graph.recorder import RecordedCall, RecordingPass, Reserved
    from trainer_client.graph.way_back import Encode
    from trainer_client.session.session import Session
    from trainer_client.session.watched import Watch


def call(
    session: Session,
    target: RRef | str,
    method: str,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    training: bool | None = True,
    keep: bool = False,
    timeout: float | None = DEFAULT,
    seed: int | None = None,
    kind: str = "call",
    what: str = "",
    encode: Encode | None = None,
) -> Pending[Any]:
    """Calls a method or function on an owner; inside a context, and with grad enabled, the call is recorded.

    Args:
        session: The session with the owner.
        target: The object, or the name of a function.
        method: Name of the method; empty for `forward`.
        args: The arguments. A `Pending` among them, also in a container, stands for its result.
        kwargs: The keyword arguments.
        training: Whether modules run in training mode; None for the mode that each has on its owner.
        keep: Whether the result stays on the owner; the result of the call is then a handle to it.
        timeout: Seconds this may take; None is no limit.
        seed: Seed of its random numbers, instead of the client's next.
        kind: How the call is made, for profiles and traces.
        what: Name of what is called, for profiles and traces; empty for the name of the method or function.
        encode: Encodes the gradients of the result before they are sent. No argument is a `Pending` then.

    Raises:
        NotAllowedError, UnknownMethodError: The method or function cannot be called.
        RemoteError: It raised an exception.
    """
    context = current_context()
    frame = Frame()
    request = frame.request.call
    handles: list[RRef] = []
    follows: Sequence[PendingCall] = ()
    if isinstance(target, RRef):
        handle, ref = request.target, target.ref
        handle.owner, handle.object_id = ref.owner, ref.object_id
        if ref.parameter:
            handle.parameter = ref.parameter
        request.method = method
        handles.append(target)
    else:
        request.function = target
    request.training = training is not False
    if training is None:
        request.own_mode = True
    if keep:
        request.keep = keep
    payload: PayloadWriter | None = None
    tensors: Sequence[torch.Tensor] = ()
    ready = True
    if args or kwargs:
        arguments = _Arguments(session, request, context, handles, [])
        try:
            payload, tensors = arguments.encode(args, kwargs)
            follows = arguments.follows
        except _NotYet:
            ready = False
    if seed is None:
        seed = session.settings.seeding.next(context.seeds if context is not None else None)
    write_numerics(request, seed)
    seconds = session.settings.seconds(timeout)
    in_graph = context is not None and torch.is_grad_enabled()
    watch = (
        begin(session.settings, session.owner, frame, kind, what or kind_of(target, method))
        if session.is_watched()
        else None
    )
    if not ready:
        reserved = context.reserve(session) if context is not None and in_graph else None
        later = _sent_later(arguments, frame, target, method, args, kwargs, reserved, seconds, watch)
        whole = Pending.run(session.loop, later)
        whole.origin = None, None, None if context is None else context.failures, target, method
        return whole
    recorded = _record(context, session, request, tensors, handles) if context is not None and in_graph else None
    if recorded is not None and encode is not None:
        recorded.encode_gradients(encode)
    # Keeps the handles among the arguments alive until the call has run.
    read = partial(_result, session, recorded, (args, kwargs, handles))
    pending = PendingCall(session, frame, payload, seconds, read, follows)
    if watch is not None:
        pending = WatchedCall.of(watch, session, frame, payload, seconds, read, follows)
    of_pass = None if context is None else context.failures
    pending.origin = context if recorded is not None else None, recorded, of_pass, target, method
    return session.send(pending)


class Staying:
    """The result of a call that stays on the owner.

    Args:
        rref: Its handle.

    Attributes:
        rref: Its handle, without a reference until the call is answered.
        fetching: Its value on the way, once a caller waits for that.
    """

    __slots__ = ("fetching", "rref")

    def __init__(self, rref: RRef) -> None:
        self.rref = rref
        self.fetching: Pending[Any] | None = None

    @property
    def is_lost(self) -> bool:
        """Whether the owner has lost it with the session."""
        reference = self.rref._reference
        return reference is not None and not reference.counts


class PendingCall(InFlightRequest[Any]):
    """A call that is sent with others at the end of the turn of the event loop, or when a task waits for its result.

    If another call to the same owner takes its result before, and nothing waits for the result, it stays on the owner.
    It is fetched if something waits for it later.
    """

    __slots__ = ()

    _session: Session

    collects = True
    origin: Origin
    staying: Staying | None

    def stay(self, session: Session, context: RecordingPass | None) -> RRef | None:
        """A handle of the result if that stays on the owner, so that a call there can take its value.

        Args:
            session: The session of that call.
            context: The context of that call.

        Returns:
            None if the value has to come here first.
        """
        own, recorded = self.origin[:2]
        if session is not self._session or (context is not None and own not in (None, context)):
            return None
        if self.staying is not None:
            # A value that was fetched may have been changed here.
            return None if self.settled or self.staying.is_lost else self.staying.rref
        request = self.frame.request.call
        if not (self.collected and session.is_here) or request.keep:
            return None
        with self._mutex:
            if self._wakers or self._outcome is not None:
                return None
            rref = RRef(session, Ref(session.owner, new_object_id()), None)
            self.staying = Staying(rref)
        request.result_id = rref.ref.object_id
        if recorded is not None:
            rref.mark(recorded.context, recorded.receive((), (), 1)[0])
        return rref

    @property
    def title(self) -> str:
        return title_of(*self.origin[3:])

    @property
    def subject(self) -> str:
        return f"{super().subject} on owner {self._session.owner!r}"

    @property
    def reason(self) -> str:
        return "whose result is an argument of this call"

    def stayed(self, reply: Reply) -> None:
        super().stayed(reply)
        if self.staying is not None:
            # The handle exists already, and gives the reference back that the answer grants.
            rref = self.staying.rref
            rref._reference = Reference(self._session, rref.ref.object_id)

    def _wanted(self) -> None:
        staying = self.staying
        if staying is None:
            return
        with self._mutex:
            if staying.fetching is not None or self._outcome is not None:
                return
            staying.fetching = Pending(None)
        try:
            fetching = self._fetch(staying.rref)
        except PsError as error:
            self.resolve(raiser(error))
        else:
            staying.fetching = fetching
            fetching.on_done(lambda: self.resolve(fetching.result))

    def _fetch(self, rref: RRef) -> Pending[Any]:
        context = self.origin[0]
        left = self.timeout
        if left is not None and self.deadline < math.inf:
            left = max(self.deadline - time.monotonic(), LEAST_SECONDS_LEFT)
        with torch.enable_grad():  # grad mode counted when the call was made
            return fetch_in(
                None if context is None or context.ended else context, rref, left, () if self.answered else (self,)
            )

    def _hurry(self) -> None:
        if self.collected:
            self._session.hurry()

    def _when_cancelled(self) -> None:
        super()._when_cancelled()
        if self.staying is not None and self.staying.fetching is not None:
            self.staying.fetching.cancel()


class WatchedCall(Watched, PendingCall):
    """A call that is watched."""

    __slots__ = ("watch",)

    @classmethod
    def of(cls, watch: Watch, *args: Any) -> PendingCall:
        """A call that is watched. The other arguments as for `PendingCall`."""
        made = cls(*args)
        made.watch = watch
        return made


class _NotYet(Exception):
    """An argument is the result of a call that has not come yet, and that does not stay on the owner."""


class _Arguments(NamedTuple):
    """The arguments of a call on their way into its request.

    Attributes:
        session: The session with the owner.
        request: The request.
        context: The context that it is made in.
        handles: The handles among the arguments.
        follows: The calls whose results, which stay on the owner, are arguments.
    """

    session: Session
    request: CallRequest
    context: RecordingPass | None
    handles: list[RRef]
    follows: list[PendingCall]

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[PayloadWriter, Sequence[torch.Tensor]]:
        """Encodes the arguments; returns the bytes of the tensors, and the tensors.

        Raises:
            _NotYet: The value of an argument is not here yet.
            InvalidArgumentError: An argument cannot be sent.
        """
        payload = PayloadWriter()
        encoder = Encoder(payload, self._other, once=True)
        if args:
            encoder.encode_into(self.request.args, args)
        if kwargs:
            encoder.encode_into(self.request.kwargs, dict(kwargs))
        return payload, encoder.tensors

    def _other(self, value: Any) -> Handle | Instead | int | None:
        """What is sent in the place of a value that the codec does not know."""
        if not isinstance(value, Pending):
            return handle_message(self.handles, self.context, value)
        rref = value.stay(self.session, self.context) if isinstance(value, PendingCall) else None
        if rref is not None and isinstance(value, PendingCall):
            results = self.request.results
            if rref.ref.object_id not in results:
                self.handles.append(rref)
                self.follows.append(value)
                results.append(rref.ref.object_id)
            return list(results).index(rref.ref.object_id)
        if not value.settled:
            raise _NotYet
        try:
            return Instead(value.result())
        except Exception as error:
            raise _NotYet from error  # the result of this call will be an error, too

    def stays(self, pending: Pending[Any]) -> bool:
        """Whether the call can take a result without waiting for it."""
        return isinstance(pending, PendingCall) and pending.stay(self.session, self.context) is not None


async def _sent_later(
    arguments: _Arguments,
    frame: Frame,
    target: RRef | str,
    method: str,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    reserved: Reserved | None,
    seconds: float | None,
    watch: Watch | None,
) -> Any:
    """Sends a call once the results among its arguments have come; returns its result."""
    session, request, context, handles, _ = arguments
    left, encoded = seconds_left(seconds), None
    while encoded is None:
        await all_there((args, kwargs), arguments.stays, left)
        for field in ("args", "kwargs", "results"):
            request.ClearField(field)
        handles[:] = [target] if isinstance(target, RRef) else []
        arguments.follows.clear()
        try:
            encoded = arguments.encode(args, kwargs)
        except _NotYet as error:
            # Without a cause, the owner has lost a result that was to stay there.
            if error.__cause__ is not None:
                raise error.__cause__ from None
    payload, tensors = encoded
    recorded = None
    if context is not None and reserved is not None:
        with torch.enable_grad():  # grad mode counted when the call was made
            recorded = _record(context, session, request, tensors, handles, reserved)
    read = partial(_result, session, recorded, (args, kwargs, handles))
    pending = PendingCall(session, frame, payload, left(), read, arguments.follows)
    if watch is not None:
        pending = WatchedCall.of(watch, session, frame, payload, left(), read, arguments.follows)
    pending.origin = context if recorded is not None else None, recorded, None, target, method
    return await session.send(pending)


def _result(
    session: Session, recorded: RecordedCall | None, held: tuple[object, ...], reply: Reply, payload: PayloadReader
) -> Any:
    if recorded is None:
        if reply.call.result.HasField("none"):
            return None
        return unrecorded(session, payload).decode(reply.call.result)
    return receive(session, reply.call.result, payload, recorded)


def _record(
    context: RecordingPass,
    session: Session,
    request: CallRequest,
    arguments: Sequence[torch.Tensor],
    handles: Sequence[RRef],
    reserved: Reserved | None = None,
) -> RecordedCall:
    inputs, tokens = [], []
    for tensor in arguments:
        if tensor.requires_grad:
            inputs.append(tensor)
    for rref in handles:
        token = rref.token(context.id)
        if token is not None:
            tokens.append(token)
    latency = session.backwards.of((request.target.object_id, request.method or request.function))
    recorded = context.record(session, inputs, tokens, latency, reserved)
    request.context.CopyFrom(context.message)
    request.call = recorded.number
    if len(recorded.place) > 1:
        request.place.extend(recorded.place)
    return recorded
