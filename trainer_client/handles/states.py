"""Reads and sets the states of modules, optimizers and schedulers on an owner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ps_wire.codec.payload import PayloadWriter
from ps_wire.codec.trees import tied
from ps_wire.codec.values import Decoder, Encoder
from ps_wire.errors import InvalidArgumentError
from ps_wire.v1.frames_pb2 import Request
from ps_wire.v1.operations_pb2 import LoadStateRequest, StateRequest

if TYPE_CHECKING:
    from trainer_client.handles.references import RRef
    from trainer_client.pending import Pending


def state_dict(handle: RRef) -> Pending[Any]:
    """The state of a module, optimizer or scheduler."""
    request = Request(state=StateRequest(target=handle.ref.to_message()))
    return handle.session.submit(
        request, None, lambda reply, payload: Decoder(payload, once=True).decode(reply.state.state)
    )


def load_state_dict(
    handle: RRef, state: Mapping[str, Any], strict: bool = True, may_be_tied: bool = False
) -> Pending[tuple[list[str], list[str]]]:
    """Sets the state of a module, optimizer or scheduler. Tensors that are tied are sent once if they may be.

    An optimizer would keep one tensor for all, and change it for each.
    """
    if not isinstance(state, Mapping):
        raise InvalidArgumentError(f"a state is a dict, not a {type(state).__name__}")
    payload = PayloadWriter()
    request = LoadStateRequest(target=handle.ref.to_message(), strict=strict)
    Encoder(payload, once=may_be_tied).encode_into(request.state, tied(state) if may_be_tied else dict(state))
    return handle.session.submit(
        Request(load_state=request),
        payload,
        lambda reply, _: (list(reply.load_state.missing_keys), list(reply.load_state.unexpected_keys)),
    )
