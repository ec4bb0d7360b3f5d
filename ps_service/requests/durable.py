"""What of the answers is on the disk of the owner: told with steps, and waited for."""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from ps_service.execution.deferred import Deferred
from ps_wire.errors import InvalidArgumentError, StorageError

if TYPE_CHECKING:
    from ps_service.requests.context import RequestContext
    from ps_service.sessions.effects import Effects
    from ps_wire.v1 import operations_pb2 as pb
    from ps_wire.v1.frames_pb2 import Reply


def durable(ctx: RequestContext, request: pb.DurableRequest, reply: pb.DurableReply) -> None:
    """Answers once all that the log has now is on the disk. Raises `InvalidArgumentError` if there is no log, and
    `StorageError` if it does not have all that the sender was told of."""
    log = ctx.engine.durability.log
    if log is None:
        raise InvalidArgumentError(
            f"owner {ctx.engine.name!r} has no log, so what it has acknowledged is on no disk before its next "
            "checkpoint: start it with --data-dir and --durability interval:1, or always"
        )
    if request.position > log.end:
        raise StorageError(
            f"the log of owner {ctx.engine.name!r} ends at position {log.end}, and not at {request.position} or later: "
            "it has restarted without changes that it had acknowledged, because its machine has crashed"
        )
    done: Future[int] = Future()

    def synced(error: StorageError | None, position: int) -> None:
        if error is None:
            done.set_result(position)
        else:
            done.set_exception(error)

    def finish(position: int) -> None:
        reply.position = position

    log.when_all_synced(synced)
    ctx.defer(Deferred(done), finish)


def tell(effects: Effects, operation: str, request: Any, reply: Reply) -> None:
    """Writes the versions of the optimizers that are on the disk beside those after their steps."""
    if operation == "step":
        for handle, each in zip((request.optimizer, *request.more), (reply.step, *reply.step.more), strict=False):
            each.durable_version = effects.durable_version(handle.object_id, each.version)
    elif operation == "settle":
        settled = reply.settle
        settled.durable_version = effects.durable_version(request.optimizer.object_id, settled.version)
    elif operation == "push":
        step = reply.push.step
        step.durable_version = effects.durable_version(request.optimizer.object_id, step.version)
    elif operation == "backward":
        told = reply.backward
        told.durable_versions.extend(
            effects.durable_version(handle.object_id, version)
            for handle, version in zip(request.steps, told.versions, strict=False)
        )
