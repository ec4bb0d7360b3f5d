"""Calls methods and functions on an owner."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from ps_wire.codec.payload import PayloadWriter
from ps_wire.codec.values import Encoder, Instead
from ps_wire.errors import PsError
from ps_wire.numerics.autocast import is_active
from ps_wire.refs import Ref, new_object_id
from ps_wire.runtime.failures import Failure, Origin
from ps_wire.runtime.scopes import LEAST_SECONDS_LEFT
from ps_wire.v1.frames_pb2 import Frame, Reply
from trainer_client.graph.current import current_context
from trainer_client.handles.arrivals import all_there, seconds_left
from trainer_client.handles.references import Reference, RRef, fetch, handle_message, receive
from trainer_client.numerics import write_numerics
from trainer_client.pending import DEFAULT, Pending
from trainer_client.session.in_flight import InFlightRequest
from trainer_client.session.watched import begin

if TYPE_CHECKING:
    from ps_wire.runtime.failures import PassFailures
    from ps_wire.v1.values_pb2 import Handle, TableName
    from trainer_client.graph.nodes import Encode
    from trainer_client.graph.recorder import RecordingPass, Reserved
    from trainer_client.session.session import Session
    from trainer_client.session.watched import Watch


class CallOptions(NamedTuple):
    """How a call is made.

    Modules run in training mode if `training` is true, and in the mode that each has on its owner if it is None.
    The seed is used instead of the client's next. `kind` and `what` tell profiles and traces how it is called, and
    what; without the latter the name of the method or function.
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

    The target is an object, or the name of a function; an empty method is `forward`. A `Pending` among the
    arguments, also in a container, stands for its result. With `keep` the result stays on the owner, and the result
    of the call is a handle to it. `encode` encodes the gradients of the result before they are sent; no argument is
    a `Pending` then.
    """
    context = current_context()
    made = _Call(
        session, target, method, args, kwargs, context, context is not None and torch.is_grad_enabled(), encode
    )
    request = made.frame.request.call
    if isinstance(target, str):
        request.function = target
    else:
        handle, ref = request.target, target._ref  # it has followed its object when its session was asked for
        handle.owner, handle.object_id = ref.owner, ref.object_id
        if ref.parameter:
            handle.parameter = ref.parameter
        request.method = method
    request.training = options.training is not False
    if options.training is None:
        request.own_mode = True
    if keep:
        request.keep = keep
    try:
        encoded = made.encode()
    except _NotYet:
        encoded = None
    seed = options.seed
    if seed is None:
        seed = session.settings.seeding.next(context.seeds if context is not None else None)
    if seed is not None or is_active():
        write_numerics(request, seed)
    settings = session.settings
    seconds = settings.timeout if options.timeout == DEFAULT else settings.seconds(options.timeout)
    if session.is_watched():
        what = options.what or _kind_of(target, method)
        made.watch = begin(settings, session.owner, made.frame, options.kind, what)
    of_pass = None if context is None else context.failures
    if encoded is not None:
        return made.send(*encoded, seconds, of_pass)
    if context is not None and made.is_recorded:
        made.reserved = context.reserve(session)
    whole = Pending.run(session.loop, made.send_later(seconds))
    whole.origin = Origin(target, method, of_pass)
    return whole


class _NotYet(Exception):
    """An argument is the result of a call that has not come yet, and that does not stay on the owner."""


@dataclass(slots=True)
class _Call:
    """A call on its way into its request; arguments as for `call`, and the context that it is made in.

    `handles` are the object and the handles among the arguments, and it `follows` the calls whose results, which stay
    on the owner, are arguments. A call that waits for others has its place in the graph `reserved`.
    """

    session: Session
    target: RRef | str
    method: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    context: RecordingPass | None
    is_recorded: bool
    encode_gradient: Encode | None
    reserved: Reserved | None = None
    watch: Watch | None = None
    frame: Frame = field(default_factory=Frame)
    handles: list[RRef] = field(default_factory=list)
    follows: list[PendingCall] = field(default_factory=list)

    def encode(self) -> tuple[PayloadWriter | None, Sequence[torch.Tensor]]:
        """The bytes of the tensors among the arguments, and the tensors. `_NotYet` if a value is not here yet."""
        self.handles = [self.target] if isinstance(self.target, RRef) else []
        if not (self.args or self.kwargs):
            return None, ()
        payload, request = PayloadWriter(), self.frame.request.call
        encoder = Encoder(payload, self._other, once=True)
        if self.args:
            encoder.encode_into(request.args, self.args)
        if self.kwargs:
            encoder.encode_into(request.kwargs, dict(self.kwargs))
        return payload, encoder.tensors

    def _other(self, value: Any) -> Handle | TableName | Instead | int | None:
        """What is sent in the place of a value that the codec does not know."""
        if not isinstance(value, Pending):
            return handle_message(self.handles, self.context, value)
        rref = value.stay(self.session, self.context) if isinstance(value, PendingCall) else None
        if rref is not None and isinstance(value, PendingCall):
            results = self.frame.request.call.results
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

    def send(
        self,
        payload: PayloadWriter | None,
        arguments: Sequence[torch.Tensor],
        seconds: float | None,
        of_pass: PassFailures | None,
    ) -> PendingCall:
        """Writes it into the graph, if it is recorded, and sends it; returns its result."""
        session, context, recorded = self.session, self.context, None
        if context is not None and self.is_recorded:
            request = self.frame.request.call
            inputs = list(filter(_needs_gradient, arguments))
            tokens = []
            for rref in self.handles:
                token = rref.token(context.id)
                if token is not None:
                    tokens.append(token)
            latency = session.backwards.of((request.target.object_id, self.method or request.function))
            recorded = context.record(session, inputs, tokens, latency, self.reserved)
            recorded.call.encode = self.encode_gradient
            request.context.CopyFrom(context.message)
            request.call, place = recorded.call.number, recorded.call.place
            if len(place) > 1:
                request.place.extend(place)
        # Keeps the handles among the arguments alive until the call has run.
        read = partial(receive, session, recorded, (self.args, self.kwargs, self.handles))
        pending = PendingCall(session, self.frame, payload, seconds, read, self.follows)
        pending.watch, pending.in_pass = self.watch, None if recorded is None else recorded.call
        pending.origin = Origin(self.target, self.method, of_pass, None if recorded is None else context, recorded)
        session.send(pending)
        return pending

    async def send_later(self, seconds: float | None) -> Any:
        """Sends it once the results among its arguments have come; returns its result."""
        left, encoded = seconds_left(seconds), None
        while encoded is None:
            await all_there((self.args, self.kwargs), self._stays, left)
            for part in ("args", "kwargs", "results"):
                self.frame.request.call.ClearField(part)
            self.follows.clear()
            try:
                encoded = self.encode()
            except _NotYet as error:
                # Without a cause, the owner has lost a result that was to stay there.
                if error.__cause__ is not None:
                    raise error.__cause__ from None
        with torch.enable_grad():  # grad mode counted when the call was made
            # Its pass hears of a failure from the whole.
            sent = self.send(*encoded, left(), None)
        return await sent

    def _stays(self, pending: Pending[Any]) -> bool:
        """Whether it can take a result without waiting for it."""
        return isinstance(pending, PendingCall) and pending.stay(self.session, self.context) is not None


_needs_gradient: Final = attrgetter("requires_grad")


def _kind_of(target: RRef | str, method: str) -> str:
    """What a call calls, for profiles and traces, which count calls of the same name: without the id of the object."""
    if isinstance(target, str):
        return target
    return ".".join(filter(None, (getattr(target, "class_name", ""), method or "forward")))


class PendingCall(InFlightRequest[Any]):
    """A call that is sent with others at the end of the turn of the event loop, or when a task waits for its result.

    If another call to the same owner takes its result before, and nothing waits for the result, it stays on the owner
    (promise pipelining): `staying` is its handle. It is `fetching` once something waits for it later.
    """

    _session: Session

    collects = True
    origin: Origin
    staying: RRef | None
    fetching: Pending[Any] | None = None

    def stay(self, session: Session, context: RecordingPass | None) -> RRef | None:
        """A handle of the result if that stays on the owner for a call there; None if it comes here first."""
        own, recorded = self.origin.context, self.origin.recorded
        if session is not self._session or (context is not None and own not in (None, context)):
            return None
        if self.staying is not None:
            # A value that was fetched may have been changed here.
            reference = self.staying._reference
            is_lost = reference is not None and not reference.counts  # with the session
            return None if self.settled or is_lost else self.staying
        request = self.frame.request.call
        if self.hurry is None or not session.is_here or request.keep:
            return None
        with self._mutex:
            if self._wakers or self.settled:
                return None
            rref = RRef(session, Ref(session.owner, new_object_id()), None)
            self.staying, self.is_lazy = rref, True
        request.result_id = rref.ref.object_id
        if recorded is not None:
            rref.mark(recorded.call.context.id, recorded.receive((), (), 1)[0])
        return rref

    @property
    def title(self) -> str:
        return self.origin.title

    @property
    def subject(self) -> str:
        return f"{super().subject} on owner {self._session.owner!r}"

    @property
    def reason(self) -> str:
        return "whose result is an argument of this call"

    def move_to(self, session: Any) -> None:
        super().move_to(session)
        if self.staying is not None:
            self.staying.move_to(session)

    def stayed(self, reply: Reply) -> None:
        super().stayed(reply)
        if self.staying is not None:
            # The handle exists already, and gives the reference back that the answer grants.
            self.staying._reference = Reference(self._session, self.staying.ref.object_id)

    def _wanted(self) -> None:
        assert self.staying is not None
        with self._mutex:
            if self.fetching is not None or self.settled:
                return
            self.fetching = Pending(None)
        try:
            fetching = self._fetch(self.staying)
        except PsError as error:
            self.resolve(Failure(error))
        else:
            self.fetching = fetching
            fetching.on_done(lambda: self.resolve(fetching.result))

    def _fetch(self, rref: RRef) -> Pending[Any]:
        context = self.origin.context
        left = self.timeout
        if left is not None and self.deadline < math.inf:
            left = max(self.deadline - time.monotonic(), LEAST_SECONDS_LEFT)
        with torch.enable_grad():  # grad mode counted when the call was made
            return fetch(
                None if context is None or context.ended else context, rref, left, () if self.answered else (self,)
            )

    def _when_cancelled(self) -> None:
        super()._when_cancelled()
        if self.fetching is not None:
            self.fetching.cancel()
