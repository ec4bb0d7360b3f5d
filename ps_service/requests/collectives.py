"""The handlers of communicators: joining, leaving, and taking part in collectives."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from ps_service.collectives.communicator import Arrival, Exchange, Piece
from ps_service.execution.deferred import Deferred
from ps_service.requests import fields
from ps_wire.codec.payload import ALIGNMENT, PayloadReader
from ps_wire.codec.trees import tensors_in
from ps_wire.codec.values import Decoder
from ps_wire.collectives import KINDS, OPERATIONS, Signature, check_reducible
from ps_wire.errors import InvalidArgumentError
from ps_wire.numerics.reducer import wide_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ps_service.requests.context import RequestContext
    from ps_wire.v1 import operations_pb2 as pb

_LONGEST_PATIENCE: Final = 3600.0
"""The longest time that a member may be away, in seconds."""

_KINDS: Final = {message: kind for kind, message in KINDS.items()}
_OPERATIONS: Final = {message: op for op, message in OPERATIONS.items()}


def join(ctx: RequestContext, request: pb.JoinCommunicatorRequest, reply: pb.JoinCommunicatorReply) -> None:
    """Makes the sender a member of a communicator, once all members have come."""
    if not 0 < request.patience_seconds <= _LONGEST_PATIENCE:
        raise InvalidArgumentError(f"a member may be away for more than 0 and at most {_LONGEST_PATIENCE:g} s")
    communicators, session, member = ctx.engine.communicators, ctx.trainer, request.member
    rank = request.rank if request.HasField("rank") else None
    seconds = fields.wait_seconds(request)
    future = communicators.join(session, member, request.name, request.size, rank, request.patience_seconds, seconds)

    def finish(rank: int) -> None:
        reply.rank = rank

    ctx.defer(Deferred(future, cancel=partial(communicators.give_up_joining, session, member)), finish)


def collective(ctx: RequestContext, request: pb.CollectiveRequest, reply: pb.CollectiveReply) -> None:
    """Takes the values of a member, and answers once all members have come."""
    communicators, session, member, number = ctx.engine.communicators, ctx.trainer, request.member, request.number
    signature = _signature(request)
    arrival = _arrival(ctx, request.pieces, signature)
    if ctx.engine.quotas.is_on:
        arrival.share = ctx.engine.quotas.hold(ctx.account, arrival.nbytes)
    future = communicators.call(session, member, number, signature, arrival, fields.wait_seconds(request))
    cancel = partial(communicators.cancel, session, member, number)
    ctx.defer(Deferred(future, cancel=cancel), partial(_write, ctx, reply))


def leave(ctx: RequestContext, request: pb.LeaveCommunicatorRequest, reply: pb.LeaveCommunicatorReply) -> None:
    """Ends a membership. Others that wait for the sender get an error."""
    ctx.engine.communicators.leave(ctx.trainer, request.member, request.why[:1000])


def _signature(request: pb.CollectiveRequest) -> Signature:
    kind = _KINDS.get(request.kind)
    if kind is None:
        raise InvalidArgumentError("a collective of a kind that this owner does not know; is it older?")
    if kind != "all_reduce":
        return Signature(kind, request.root)
    op = _OPERATIONS.get(request.reduction)
    if op is None:
        raise InvalidArgumentError("a reduction that this owner does not know; is it older?")
    return Signature(kind, 0, op)


def _arrival(ctx: RequestContext, messages: Sequence[pb.Piece], signature: Signature) -> Arrival:
    reader = PayloadReader(ctx.payload)
    pieces, nbytes, message_bytes = [], 0, 0
    for message in messages:
        message_bytes += message.value.ByteSize()
        # In an answer, each begins at a multiple of this.
        nbytes += message.nbytes + ALIGNMENT
        pieces.append(Piece(message.value, reader.part(message.offset, message.nbytes)))
    if signature.kind != "all_reduce":
        return Arrival(pieces, None, nbytes + message_bytes, message_bytes)
    if len(pieces) != 1:
        raise InvalidArgumentError("a reduction takes one value of each member")
    value = Decoder(PayloadReader(pieces[0].payload)).decode(pieces[0].value)
    check_reducible(value, signature.op)
    return Arrival((), value, message_bytes + sum(map(wide_bytes, tensors_in(value))), message_bytes)


def _write(ctx: RequestContext, reply: pb.CollectiveReply, exchange: Exchange) -> None:
    for value, payload in exchange.pieces:
        message = reply.pieces.add()
        if ctx.embeds:
            ctx.write(message.value, Decoder(PayloadReader(payload)).decode(value))
        else:
            message.value.CopyFrom(value)
            message.offset, message.nbytes = ctx.append(payload), len(payload)
    if exchange.reduced is not None:
        ctx.write(reply.reduced, exchange.reduced)
