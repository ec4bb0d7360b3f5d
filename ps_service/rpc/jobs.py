"""Jobs: the requests of a session that are being run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from ps_service.engine.compute import Work
from ps_service.rpc.dispatch import Later, abandon, cancelled, perform, too_late
from ps_service.rpc.exchange import Exchange
from ps_service.state.journal import Answer
from ps_wire.scopes import Scope


class Job:
    """One request in a compute thread; it has one answer, whatever happens first.

    Args:
        number: Of the request.
        exchange: What it reads from and writes to.
        operation: Name of the operation.
        request: Its message.
        timeout_seconds: How long its trainer will wait; 0 for as long as it takes.
        depth: How many requests it is nested in.
        finished: Called on the event loop with the answer.
    """

    def __init__(
        self,
        number: int,
        exchange: Exchange,
        operation: str,
        request: Any,
        timeout_seconds: float,
        depth: int,
        finished: Callable[[Job, Answer], None],
    ) -> None:
        self.number = number
        self.operation = operation
        self._exchange = exchange
        self._request = request
        self._seconds = timeout_seconds
        self._scope = Scope(timeout_seconds, depth)
        self._finished = finished
        self._started = time.perf_counter()
        self._answered = False
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Queues it for a thread."""
        if self._seconds:
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self._expire)
        self._exchange.engine.compute.submit(self._run)

    def cancel(self) -> None:
        """Its trainer does not want it any more; it is not run if no thread had taken it yet."""
        self._give_up()
        self._answer(cancelled(self.number))

    def _run(self) -> Work:
        if self._answered:
            return _nothing
        result = perform(self._exchange, self.operation, self._request, self.number, self._scope)
        if isinstance(result, Later):
            result.when_done(lambda: self._exchange.engine.compute.submit(partial(self._complete, result)))
            return _nothing
        return partial(self._answer, result)

    def _complete(self, later: Later) -> Work:
        return _nothing if self._answered else partial(self._answer, later.finish())

    def _expire(self) -> None:
        self._give_up()
        self._answer(too_late(self.operation, self._seconds, self.number))

    def _give_up(self) -> None:
        self._scope.cancel()
        abandon(self._exchange, self.operation, self._started)

    def _answer(self, result: Answer) -> None:
        if self._answered:
            return
        self._answered = True
        if self._timer is not None:
            self._timer.cancel()
        self._finished(self, result)


def _nothing() -> None:
    """For work after which there is nothing to do, yet."""
