"""Runs unary requests with a number, each of them once, however often it is sent."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ps_service.execution.fair_queue import WorkItem
from ps_service.requests.error_answers import cut_off, failure
from ps_service.rpc.unary_metadata import NUMBER_KEY
from ps_wire.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from ps_service.engine import Engine
    from ps_service.requests.operations import Operation
    from ps_service.sessions.reply_cache import Answer
    from ps_service.sessions.sessions import SessionState


@dataclass(slots=True)
class _Numbered:
    """A running request with a number, and how many callers wait for its answer."""

    task: asyncio.Task[Answer]
    item: WorkItem
    waiting: int = 0


class NumberedRequests:
    """Runs each numbered request once, and answers it each time it is sent."""

    def __init__(self, engine: Engine, run: Callable[..., Coroutine[Any, Any, Answer]]) -> None:
        self._engine = engine
        self._run = run
        self._numbered: dict[tuple[bytes, int], _Numbered] = {}
        self.is_cut_off = False

    def cut_off(self) -> None:
        """Answers running requests as cut off, because the owner stops; their later effects are not kept."""
        self.is_cut_off = True
        for trainer, number in self._numbered:
            self._engine.reply_cache.record(trainer, number, cut_off(self._engine, number))

    def close(self) -> None:
        """Cancels the running requests."""
        for running in self._numbered.values():
            running.task.cancel()

    async def answer(
        self, session: SessionState, number: int, operation: Operation, request: Any, timeout: float
    ) -> Answer:
        """The answer of a request, which runs if it has not run before.

        A caller that is cancelled stops waiting. The request goes on, and its answer is kept.
        """
        key = (session.trainer, number)
        running = self._numbered.get(key)
        if running is None:
            # It also runs if its caller has gone: the caller that asks again gets its answer.
            item = WorkItem(session.trainer, lasting=True)
            task = asyncio.create_task(self._run_once(session, number, operation, request, timeout, item))
            running = self._numbered[key] = _Numbered(task, item)
            task.add_done_callback(lambda _: self._numbered.pop(key))
        compute = self._engine.compute
        running.waiting += 1
        compute.reclaim(running.item)
        try:
            result = await asyncio.shield(running.task)
        finally:
            running.waiting -= 1
            if not running.waiting and not running.task.done():
                compute.abandon(running.item)
        if result.reply.HasField("error") or result.reply.HasField(operation.name):
            return result
        return failure(InvalidArgumentError(f"{NUMBER_KEY} {number} was another request's; count on with each new one"))

    async def _run_once(
        self, session: SessionState, number: int, operation: Operation, request: Any, timeout: float, item: WorkItem
    ) -> Answer:
        reply_cache, trainer = self._engine.reply_cache, session.trainer
        known = reply_cache.recall(trainer, number)
        if known is not None:
            return known
        result = await self._run(trainer, operation, request, timeout, item)
        if self.is_cut_off:
            return result
        if session.ended:
            self._engine.registry.revoke(trainer, result.granted)
        else:
            reply_cache.forget(trainer, range(max(1, number - 16), number))
            reply_cache.record(trainer, number, result)
        return result
