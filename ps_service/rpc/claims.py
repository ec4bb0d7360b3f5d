"""The gRPC service of a keeper of the directory, where there are several: it answers owners that claim their names."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import grpc

from ps_service.group import claim_messages
from ps_wire.v1.directory_pb2 import ClaimReply, ClaimRequest

if TYPE_CHECKING:
    from ps_service.engine import Engine

_SERVICE: Final = "ps_wire.v1.Directory"


def handlers(engine: Engine) -> grpc.GenericRpcHandler:
    """The handlers for a `grpc.aio.server`. They run on the event loop, so that claims are answered however busy the
    compute threads are, and also by an owner that has no lease itself."""
    claim = grpc.unary_unary_rpc_method_handler(
        partial(_claim, engine),
        request_deserializer=ClaimRequest.FromString,
        response_serializer=ClaimReply.SerializeToString,
    )
    return grpc.method_handlers_generic_handler(_SERVICE, {"Claim": claim})


async def _claim(engine: Engine, request: ClaimRequest, context: grpc.aio.ServicerContext[Any, Any]) -> ClaimReply:
    registers = engine.membership.registers
    if engine.gate.why:
        await context.abort(grpc.StatusCode.UNAVAILABLE, engine.gate.why)
    if registers is None:
        why = f"owner {engine.name!r} is no keeper of a directory that has several, or has not begun"
        await context.abort(grpc.StatusCode.UNAVAILABLE, why)
    assert registers is not None
    now = engine.fence.clock()
    answer = registers.answer(claim_messages.claim_of(request), now)
    entries = registers.entries(now)
    version = f"{engine.incarnations.current}:{registers.version}"
    return claim_messages.reply(answer, version, entries if version != request.version else ())
