"""Counted references to objects on owners, and handles that share them."""

from __future__ import annotations

import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from ps_wire.codec import tensors
from ps_wire.codec.trees import mapped
from ps_wire.codec.values import Decoder
from ps_wire.errors import StaleHandleError
from ps_wire.refs import ContextId, Ref
from ps_wire.v1.frames_pb2 import Frame, Reply
from trainer_client.graph.current import current_context
from trainer_client.pending import DEFAULT
from trainer_client.session.late_answers import losses_and_restarts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ps_wire.codec.payload import PayloadReader
    from ps_wire.v1.values_pb2 import Handle, TableName
    from trainer_client.graph.recorder import RecordedCall, RecordingPass
    from trainer_client.pending import Pending
    from trainer_client.session.in_flight import InFlightRequest
    from trainer_client.session.session import Session


class Reference:
    """One counted reference on the owner. It is given back when the last handle that shares it is freed."""

    def __init__(self, session: Session, object_id: str) -> None:
        self._session = session
        # An answer may be read late.
        self._losses, self._restarts = losses_and_restarts(session)
        # At exit, the end of the session gives all references back at once.
        weakref.finalize(self, session.release, object_id, self._losses).atexit = False

    @property
    def counts(self) -> bool:
        """Whether the owner still counts it."""
        return self._session.losses == self._losses and self._session.state != "closed"

    @property
    def is_stale(self) -> bool:
        """Whether the owner has lost its state since. It may have an object with that id, in an earlier state."""
        return self._session.restarts != self._restarts


class RRef:
    """A handle: a reference to an object on an owner, or to a parameter of one.

    An anonymous object lives while a trainer holds a handle to it; a named object lives until it is deleted. Handles
    can be arguments and results of remote methods, also on other owners of the same group. To share a handle with
    another trainer, send it `str(handle)`, which says what it refers to, too. It has to call `attach` with that while
    this handle still exists.

    Attributes:
        may_be_parameter: Whether the object may be a parameter. A handle that came with an answer does not tell.
    """

    may_be_parameter = True

    def __init__(self, session: Session, ref: Ref, reference: Reference | None) -> None:
        self._session = session
        self._ref = ref
        self._reference = reference
        self._token: tuple[ContextId, torch.Tensor] | None = None

    @property
    def ref(self) -> Ref:
        """The owner, the id of the object, and the name of the parameter."""
        if self._session.moved:
            self.follow()
        return self._ref

    @property
    def session(self) -> Session:
        """The session with the owner; `StaleHandleError` if that has restarted from an earlier state."""
        if self._session.moved:
            self.follow()
        reference = self._reference
        # The condition of `is_stale`, without the cost of a call.
        if reference is not None and reference._session.restarts != reference._restarts:
            raise StaleHandleError(
                f"owner {self.owner!r} has restarted since {self} was received, and has lost its state since then. "
                f"Ask for it again as at the beginning: {self._again()}"
            )
        return self._session

    def follow(self) -> None:
        """Refers to the owner that has the object now, if this trainer knows that it has moved."""
        while (to := self._session.moved.get(self._ref.object_id)) is not None:
            self.move_to(to)
            self._reference = Reference(to, self._ref.object_id)

    def move_to(self, session: Session) -> None:
        """Refers to another owner, which has the object, or will have it."""
        self._session, self._ref = session, self._ref._replace(owner=session.owner)

    @property
    def owner(self) -> str:
        """Name of the owner."""
        return self.ref.owner

    def to_here(self, timeout: float | None = DEFAULT) -> Pending[Any]:
        """A copy of the value, with tensors on the CPU. Modules cannot be copied: ask for their `state_dict`.

        Inside a context, gradients propagate back through the copy if the value was computed in that context or is a
        parameter: a leaf of torch's graph that requires grad.

        Args:
            timeout: Seconds this may take; None is no limit.

        Raises:
            StaleHandleError: The object no longer exists.
            InvalidArgumentError: The value cannot be sent.
        """
        return fetch(current_context() if torch.is_grad_enabled() else None, self, timeout)

    def token(self, context: ContextId) -> torch.Tensor | None:
        """The value's token in the graph of a pass; None if the value was not computed in that pass."""
        return self._token[1] if self._token is not None and self._token[0] == context else None

    def mark(self, context: ContextId, token: torch.Tensor) -> None:
        """Sets the value's token in the graph of the pass that computed it."""
        self._token = (context, token)

    def _again(self) -> str:
        """The call that gives a handle to the object again."""
        return "the call that returned it"

    def __str__(self) -> str:
        return str(self.ref)

    def __repr__(self) -> str:
        state = state_of(self)
        return f"<{type(self).__name__} {self.ref}{self._told()}{f', {state}' if state else ''}>"

    def _told(self) -> str:
        """What else tells what it refers to, for `repr`."""
        return ""

    def __eq__(self, other: object) -> bool:
        # Not by the owner, because objects move.
        return isinstance(other, RRef) and self.ref[1:] == other.ref[1:]

    def __hash__(self) -> int:
        return hash(self.ref[1:])

    def __ps_objects__(self) -> Sequence[Any]:
        """The objects with names that it may stand for: see `named_parts`."""
        return ()

    def __reduce__(self) -> Any:
        raise TypeError("a handle cannot be pickled: send str(handle), and call attach() with it in the other process")


def fetch(
    context: RecordingPass | None, rref: RRef, timeout: float | None, follows: Sequence[InFlightRequest[Any]] = ()
) -> Pending[Any]:
    """A copy of the value of a handle, recorded in a context or in none. What makes it may have no answer yet."""
    session, frame = rref.session, Frame()
    request = frame.request.fetch
    request.target.owner, request.target.object_id, request.target.parameter = rref.ref
    recorded = None
    if context is not None:
        # A value that was not computed in the pass may be a parameter, which only its owner knows.
        token = rref.token(context.id)
        tokens = () if token is None else (token,)
        recorded = context.record(session, (), tokens, session.backwards.of(("", "fetch")))
        request.context.CopyFrom(context.message)
        request.call, place = recorded.call.number, recorded.call.place
        if len(place) > 1:
            request.place.extend(place)
    sent = session.submit(frame, None, partial(receive, session, recorded, rref), timeout, follows)
    sent.in_pass = None if recorded is None else recorded.call
    return sent


def _marked(tensor: torch.Tensor, requires_grad: bool) -> torch.Tensor:
    return tensor.requires_grad_() if requires_grad else tensor


def receive(session: Session, recorded: RecordedCall | None, held: object, reply: Reply, payload: PayloadReader) -> Any:
    """Decodes the result of a call or fetch: tensors get their history, if it was recorded, and handles references.

    What is `held` lives until then: the handles among the arguments.
    """
    message = reply.call.result if reply.HasField("call") else reply.fetch.value
    if message.HasField("none"):
        return None
    if recorded is None:
        marked = _marked if session.settings.marks else None
        return Decoder(payload, partial(received, session), marked, once=True).decode(message)
    if message.HasField("tensor"):
        # The usual result needs fewer steps.
        tensor = tensors.unpack(message.tensor, payload)
        return recorded.receive((tensor,), (0,))[0] if message.tensor.requires_grad else tensor
    found: list[torch.Tensor] = []
    places: list[int] = []
    kept: list[RRef] = []

    def note(tensor: torch.Tensor, requires_grad: bool) -> torch.Tensor:
        if requires_grad:
            places.append(len(found))
        found.append(tensor)
        return tensor

    def handle(message: Handle) -> RRef:
        rref = received(session, message)
        if message.history:
            kept.append(rref)
        return rref

    value = Decoder(payload, handle, note, once=True).decode(message)
    if not (places or kept):
        return value
    outputs = recorded.receive([found[place] for place in places], places, len(kept))
    for rref, token in zip(kept, outputs[len(places) :], strict=True):
        rref.mark(recorded.call.context.id, token)
    if isinstance(value, torch.Tensor):  # a sparse one
        return outputs[0]
    by_id = {id(found[place]): tensor for place, tensor in zip(places, outputs, strict=False)}
    return mapped(value, lambda tensor: by_id.get(id(tensor), tensor))


def handle_message(found: list[RRef], context: RecordingPass | None, value: Any) -> Handle | TableName | None:
    """The message for a handle among the arguments of a call, which is appended to `found`, or for a table; None for
    other values."""
    if not isinstance(value, RRef):
        # Objects that wrap a handle have this attribute.
        behind = getattr(value, "__ps_handle__", None)
        if behind is None:
            table = getattr(value, "__ps_table__", None)
            return None if table is None else table()
        value = behind()
    found.append(value)
    message: Handle = value.ref.to_message()
    message.history = context is not None and value.token(context.id) is not None
    return message


def received(session: Session, message: Handle) -> RRef:
    """The handle for a handle in an answer."""
    ref = Ref.from_message(message)
    if ref.owner == session.owner:
        return RRef(session, ref, Reference(session, ref.object_id))
    # For an object of another owner, a reference was taken before the answer was delivered.
    found: RRef = session.borrowed(ref)
    return found


def state_of(rref: RRef) -> str:
    """Why a handle cannot be used now, for messages; empty if it can."""
    if rref._reference is not None and rref._reference.is_stale:
        return "stale: its owner has restarted"
    state = rref._session.state
    return "" if state == "connected" else state
