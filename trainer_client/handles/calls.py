"""Calls methods and functions on an owner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from ps_wire.codec.payload import PayloadReader, PayloadWriter
from ps_wire.codec.values import Decoder, Encoder
from ps_wire.v1.frames_pb2 import Frame, Reply
from trainer_client.graph.current import current_context
from trainer_client.handles.references import RRef, receive, received
from trainer_client.numerics import write_numerics
from trainer_client.pending import DEFAULT

if TYPE_CHECKING:
    from ps_wire.v1.operations_pb2 import CallRequest
    from ps_wire.v1.values_pb2 import Handle
    from trainer_client.contexts.context import Context
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
    """Calls a method or function on an owner; inside a context, and with grad enabled, the call is recorded.

    Args:
        session: The session with the owner.
        target: The object, or the name of a function.
        method: Name of the method; empty for `forward`.
        args: The arguments.
        kwargs: The keyword arguments.
        training: Whether modules run in training mode.
        keep: Whether the result stays on the owner; the result of the call is then a handle to it.
        timeout: Seconds this may take; None is no limit.
        seed: Seed of its random numbers, instead of the client's next.

    Raises:
        NotAllowedError, UnknownNameError: The method or function cannot be called.
        RemoteError: It raised an exception.
    """
    context = current_context()
    frame = Frame()
    request = frame.request.call
    handles: list[RRef] = []
    if isinstance(target, RRef):
        request.target.owner, request.target.object_id, request.target.parameter = target.ref
        request.method = method
        handles.append(target)
    else:
        request.function = target
    request.training = training
    request.keep = keep
    payload, encoder = None, None
    if args or kwargs:
        payload = PayloadWriter()
        encoder = Encoder(payload, partial(handle_message, handles, context))
        if args:
            encoder.encode_into(request.args, args)
        if kwargs:
            encoder.encode_into(request.kwargs, dict(kwargs))
    if seed is None:
        seed = session.settings.seeding.next(context.seeds if context is not None else None)
    else:
        seed %= 1 << 64
    write_numerics(request, seed)
    recorded = None
    if context is not None and torch.is_grad_enabled():
        recorded = _record(context, session, request, encoder.tensors if encoder is not None else (), handles)
    # Keeps the handles among the arguments alive until the call has run.
    return session.submit(frame, payload, partial(_result, session, recorded, (args, kwargs, handles)), timeout)


def _result(
    session: Session, recorded: RecordedCall | None, held: tuple[object, ...], reply: Reply, payload: PayloadReader
) -> Any:
    if recorded is None:
        return Decoder(payload, partial(received, session)).decode(reply.call.result)
    return receive(session, reply.call.result, payload, recorded)


def handle_message(found: list[RRef], context: Context | None, value: Any) -> Handle | None:
    """The message for a handle among the arguments of a call; None if the value is no handle.

    Args:
        found: The handle is appended to this list.
        context: The context that the call is made in.
        value: Any argument.
    """
    if not isinstance(value, RRef):
        # Objects that wrap a handle have this attribute.
        behind = getattr(value, "__ps_handle__", None)
        if behind is None:
            return None
        value = behind()
    found.append(value)
    message: Handle = value.ref.to_message()
    message.history = context is not None and value.token(context.id) is not None
    return message


def _record(
    context: Context,
    session: Session,
    request: CallRequest,
    arguments: Sequence[torch.Tensor],
    handles: Sequence[RRef],
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
    recorded = context.record(session, inputs, tokens, latency)
    request.context.CopyFrom(context.message)
    request.call = recorded.number
    if len(recorded.place) > 1:
        request.place.extend(recorded.place)
    return recorded
