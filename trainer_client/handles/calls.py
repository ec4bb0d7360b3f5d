"""Calls: methods of objects on an owner, and functions there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from ps_wire.codec.payload import PayloadReader, PayloadWriter
from ps_wire.codec.values import Encoder
from ps_wire.v1.frames_pb2 import Frame, Reply
from trainer_client.graph.current import current_context
from trainer_client.handles.references import RRef, receive
from trainer_client.numerics import write_numerics
from trainer_client.pending import DEFAULT

if TYPE_CHECKING:
    from ps_wire.v1.operations_pb2 import CallRequest
    from ps_wire.v1.values_pb2 import Handle
    from trainer_client.graph.recorder import RecordedCall
    from trainer_client.pending import Pending
    from trainer_client.session.session import Session


def call(
    session: Session,
    target: RRef | str,
    method: str,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    training: bool = True,
    keep: bool = False,
    timeout: float | None = DEFAULT,
    seed: int | None = None,
) -> Pending[Any]:
    """Calls something on an owner; inside a context, and with grad enabled, the call is recorded.

    Args:
        session: Leads to the owner.
        target: The object, or the name of a function.
        method: The object's method; empty for `forward`.
        args: The arguments.
        kwargs: The keyword arguments.
        training: The mode in which modules run.
        keep: Whether the result stays there, and a handle to it is wanted.
        timeout: Seconds this may take; None waits for ever.
        seed: Of its random numbers, in place of the client's next.

    Raises:
        NotAllowedError, UnknownNameError: It cannot be called.
        RemoteError: It raised.
    """
    payload = PayloadWriter()
    met = HandlesMet()
    encoder = Encoder(payload, met)
    frame = Frame()
    request = frame.request.call
    if isinstance(target, RRef):
        request.target.owner, request.target.object_id, request.target.parameter = target.ref
        request.method = method
        met.found.append(target)
    else:
        request.function = target
    request.training = training
    request.keep = keep
    if args:
        encoder.encode_into(request.args, args)
    if kwargs:
        encoder.encode_into(request.kwargs, dict(kwargs))
    write_numerics(request, next_seed(session) if seed is None else seed % (1 << 64))
    recorded = _record(session, request, encoder, met)
    # Handles among the arguments must not be given back before the call has run.
    held = (args, kwargs, met.found)

    def finish(reply: Reply, answer: PayloadReader, _: Any = held) -> Any:
        return receive(session, reply.call.result, answer, recorded)

    return session.submit(frame, payload, finish, timeout)


def next_seed(session: Session) -> int | None:
    """The seed of a call that is made now, if the client's calls have any."""
    context = current_context()
    return session.settings.seeding.next(context.seeds if context is not None else None)


class HandlesMet:
    """Tells an encoder how handles travel, and remembers them.

    Attributes:
        found: The handles met so far.
    """

    def __init__(self) -> None:
        self.found: list[RRef] = []
        self._context = current_context()

    def __call__(self, value: Any) -> Handle | None:
        if not isinstance(value, RRef):
            # Whatever else stands for a handle says so itself.
            behind = getattr(value, "__ps_handle__", None)
            if behind is None:
                return None
            value = behind()
        self.found.append(value)
        message: Handle = value.ref.to_message()
        message.history = self._context is not None and value.token(self._context.id) is not None
        return message


def _record(session: Session, request: CallRequest, encoder: Encoder, met: HandlesMet) -> RecordedCall | None:
    context = current_context()
    if context is None or not torch.is_grad_enabled():
        return None
    inputs = [tensor for tensor in encoder.tensors if tensor.requires_grad]
    tokens = [token for rref in met.found if (token := rref.token(context.id)) is not None]
    recorded = context.record(session, inputs, tokens)
    request.context.CopyFrom(context.id.to_message())
    request.call = recorded.number
    if len(recorded.place) > 1:
        request.place.extend(recorded.place)
    return recorded
