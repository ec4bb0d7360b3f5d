"""The handler that reports what an owner has measured in the last minutes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from ps_service.memory.available import memory
from ps_wire.release import RELEASE

if TYPE_CHECKING:
    from ps_service.engine import Engine
    from ps_service.requests.context import RequestContext
    from ps_wire.v1 import operations_pb2 as pb

_MOST: Final = 100
"""Most samples of one reply, which are copied on the event loop."""


def history(ctx: RequestContext, request: pb.HistoryRequest, reply: pb.HistoryReply) -> None:
    """Reports the first samples after a number, and the limits that they are compared with."""
    describe(ctx.engine, request.after, reply)


def describe(engine: Engine, after: int, reply: pb.HistoryReply) -> None:
    """Describes an owner and its samples after a number in a message. Used on the event loop."""
    reply.owner = engine.name
    reply.incarnation = engine.incarnations.current
    reply.state = "draining" if engine.draining else "stalled" if engine.compute.stalled else "serving"
    reply.version = RELEASE
    reply.uptime_seconds = engine.uptime_seconds()
    reply.memory_bytes = memory()
    reply.max_owner_bytes = engine.limits.max_owner_bytes
    reply.max_context_bytes = engine.limits.max_context_bytes or memory() // 2
    reply.objects = sum(engine.census.kinds.values())
    now = time.monotonic()
    for sample in engine.history.after(after, _MOST):
        told = reply.samples.add()
        told.CopyFrom(sample.message)
        told.age_seconds = max(now - sample.ended, 0.0)
