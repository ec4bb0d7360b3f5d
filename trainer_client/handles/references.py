"""References: what a trainer holds of any object on an owner."""

from __future__ import annotations

import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from ps_wire.codec.trees import mapped
from ps_wire.codec.values import Decoder
from ps_wire.errors import StaleHandleError
from ps_wire.refs import ContextId, Ref
from ps_wire.v1.frames_pb2 import Frame, Reply
from trainer_client.graph.current import current_context
from trainer_client.pending import DEFAULT

if TYPE_CHECKING:
    from ps_wire.codec.payload import PayloadReader
    from ps_wire.v1.values_pb2 import Handle, Value
    from trainer_client.graph.recorder import RecordedCall
    from trainer_client.pending import Pending
    from trainer_client.session.session import Session


class Reference:
    """One count on the owner, given back when the last handle that shares it is gone.

    Args:
        session: Where the object is.
        object_id: Which object.
    """

    def __init__(self, session: Session, object_id: str) -> None:
        self._session = session
        self._losses = session.losses
        self._restarts = session.restarts
        # At exit the session's goodbye gives everything back at once.
        weakref.finalize(self, session.release, object_id).atexit = False

    @property
    def counts(self) -> bool:
        """Whether the owner still knows of it."""
        return self._session.losses == self._losses and self._session.state != "closed"

    @property
    def is_stale(self) -> bool:
        """Whether the owner has started anew since. It may have an object of that id, in an earlier state."""
        return self._session.restarts != self._restarts


class RRef:
    """A handle: refers to an object on an owner, or to a parameter of one.

    An anonymous object lives while any trainer holds a handle to it; a named one until it is deleted. Handles can be
    passed to remote methods, also of other owners that can find each other, and are returned by them. Between trainers
    they are shared as `str(handle)`, which the other trainer passes to `attach` while this one is still held.

    Attributes:
        ref: What it refers to.
        may_be_parameter: Whether that may be a parameter. A handle that came with an answer does not say; its owner
            knows.
    """

    may_be_parameter = True

    def __init__(self, session: Session, ref: Ref, reference: Reference | None) -> None:
        self._session = session
        self.ref = ref
        self._reference = reference
        self._token: tuple[ContextId, torch.Tensor] | None = None

    @property
    def session(self) -> Session:
        """Leads to the owner.

        Raises:
            StaleHandleError: The owner has started anew, and not from where it was.
        """
        reference = self._reference
        # As `is_stale`, without a call.
        if reference is not None and reference._session.restarts != reference._restarts:
            raise StaleHandleError(
                f"owner {self.owner!r} has restarted since {self} was received, and what it did in between is gone. "
                "Attach to the object by name, or make it again"
            )
        return self._session

    @property
    def owner(self) -> str:
        """Name of the owner."""
        return self.ref.owner

    def to_here(self, timeout: float | None = DEFAULT) -> Pending[Any]:
        """A copy of the value. For a module, ask for its `state_dict` instead.

        Inside the context in which the value was computed, gradients go back through it.

        Args:
            timeout: Seconds this may take; None waits for ever.
        """
        return fetch(self, timeout)

    def token(self, context: ContextId) -> torch.Tensor | None:
        """What stands for the value in the graph of a pass, if it was computed in that pass from something that is."""
        return self._token[1] if self._token is not None and self._token[0] == context else None

    def mark(self, context: ContextId, token: torch.Tensor) -> None:
        """The value was computed in a pass; a token stands for it in the graph."""
        self._token = (context, token)

    def __str__(self) -> str:
        return str(self.ref)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.ref}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RRef) and self.ref == other.ref

    def __hash__(self) -> int:
        return hash(self.ref)

    def __reduce__(self) -> Any:
        raise TypeError("a handle is not pickled: send str(handle), and attach to it on the other side")


def fetch(rref: RRef, timeout: float | None) -> Pending[Any]:
    """A copy of what a handle refers to, recorded if it has a history in the pass."""
    frame = Frame()
    request = frame.request.fetch
    request.target.owner, request.target.object_id, request.target.parameter = rref.ref
    recorded = None
    context = current_context()
    token = rref.token(context.id) if context is not None and torch.is_grad_enabled() else None
    if context is not None and token is not None:
        recorded = context.record(rref.session, (), (token,))
        request.context.CopyFrom(context.message)
        request.call = recorded.number
        if len(recorded.place) > 1:
            request.place.extend(recorded.place)
    # The handle must not be given back before.
    return rref.session.submit(frame, None, partial(_fetched, rref, recorded), timeout)


def _fetched(rref: RRef, recorded: RecordedCall | None, reply: Reply, payload: PayloadReader) -> Any:
    if recorded is None:
        return Decoder(payload, partial(received, rref.session)).decode(reply.fetch.value)
    return receive(rref.session, reply.fetch.value, payload, recorded)


def receive(session: Session, message: Value, payload: PayloadReader, recorded: RecordedCall) -> Any:
    """The result of a recorded call: its tensors in the graph, and its handles held.

    Args:
        session: Where it comes from.
        message: The result.
        payload: The tensor bytes beside it.
        recorded: The call in the graph.
    """
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

    value = Decoder(payload, handle, note).decode(message)
    if not (places or kept):
        return value
    outputs = recorded.receive([found[place] for place in places], places, len(kept))
    for rref, token in zip(kept, outputs[len(places) :], strict=True):
        rref.mark(recorded.context, token)
    if isinstance(value, torch.Tensor):
        return outputs[0]
    by_id = {id(found[place]): tensor for place, tensor in zip(places, outputs, strict=False)}
    return mapped(value, lambda tensor: by_id.get(id(tensor), tensor))


def received(session: Session, message: Handle) -> RRef:
    """The handle that an answer hands out."""
    ref = Ref.from_message(message)
    if ref.owner == session.owner:
        return RRef(session, ref, Reference(session, ref.object_id))
    # Of another owner's object; it was taken hold of before the answer was given to whoever waits.
    return session.borrowed(ref)
