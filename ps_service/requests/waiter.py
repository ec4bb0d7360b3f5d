"""Answers one request for a caller that waits for it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from ps_service.requests.context import RequestContext
from ps_service.requests.error_answers import failure, stopping
from ps_service.requests.execution import Execution, Observer
from ps_service.requests.run_handler import run_inline

if TYPE_CHECKING:
    from ps_service.engine import Engine
    from ps_service.execution.fair_queue import WorkItem
    from ps_service.requests.operations import Operation
    from ps_service.sessions.reply_cache import Answer
    from ps_wire.codec.payload import Buffer


class Waiter(Observer):
    """Waits for the answer of one execution."""

    def __init__(self) -> None:
        self.made = []
        self._answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    def finished(self, execution: Execution, answer: Answer) -> None:
        if not self._answer.done():
            self._answer.set_result(answer)

    async def run(self, execution: Execution) -> Answer:
        """Runs an execution and returns its answer. Never raises: if this task is cancelled, so is the request."""
        timer = None
        if execution.seconds:
            timer = asyncio.get_running_loop().call_later(execution.seconds, execution.expire)
        execution.queue()
        try:
            return await asyncio.shield(self._answer)
        except asyncio.CancelledError:
            execution.cancel()
            return self._answer.result()
        finally:
            if timer is not None:
                timer.cancel()


async def answer(
    engine: Engine,
    trainer: bytes,
    operation: Operation,
    request: Any,
    payload: Buffer | None = None,
    timeout_seconds: float = 0.0,
    embed: bool = False,
    item: WorkItem | None = None,
) -> Answer:
    """The answer to one request, which may be an error. Never raises.

    `timeout_seconds` is how long the caller waits, without limit if it is 0. With `embed` the tensor bytes of the reply
    are part of its message. `item` is its work item for the compute threads.
    """
    if not engine.gate.admits(trainer, operation, request):
        refused = failure(stopping(engine))
        engine.counters.refuse(refused.reply.error.code)
        return refused
    ctx = RequestContext(engine, trainer, payload, embed)
    answered = run_inline(ctx, operation, request, number=0)
    if answered is not None:
        return answered
    waiter = Waiter()
    return await waiter.run(Execution(ctx, operation, request, waiter, seconds=timeout_seconds, item=item))
