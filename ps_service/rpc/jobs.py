"""Jobs: the requests of a session that are being run."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from ps_service.engine.compute import Work
from ps_service.rpc.dispatch import Later, abandoned, cancelled, cut_off, perform_queued, too_late
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
        self._answered = False
        self._begun = False
        self._due = False
        self._lock = threading.Lock()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Queues it for a thread."""
        if self._seconds:
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self._expire)
        self._exchange.engine.compute.submit(self._run)

    def cancel(self) -> None:
        """Its trainer does not want it any more; it is not run if no thread had taken it yet."""
        self._answer(self._given_up(cancelled(self.number)))

    def cut_off(self) -> None:
        """Its owner stops, and whoever waits for it should know."""
        self._answer(self._given_up(cut_off(self._exchange.engine, self.number)))

    @property
    def is_due(self) -> bool:
        """Whether it has waited for others, and its result is there."""
        return self._due and not self._answered

    def drop(self, even_if_begun: bool) -> bool:
        """Its owner stops, and it is run another time, so that it has no answer now.

        Returns:
            Whether that is so: not if it has begun and that matters.
        """
        with self._lock:
            if self._begun and not even_if_begun:
                return False
            self._answered = True
        self._given_up(cut_off(self._exchange.engine, self.number))
        return True

    def _run(self) -> Work:
        with self._lock:
            if self._answered:
                return _nothing
            self._begun = True
        result = perform_queued(self._exchange, self.operation, self._request, self.number, self._scope)
        if isinstance(result, Later):
            result.when_done(lambda: self._come_back(result))
            return _nothing
        return partial(self._answer, result)

    def _come_back(self, later: Later) -> None:
        self._due = True
        self._exchange.engine.compute.submit(partial(self._complete, later))

    def _complete(self, later: Later) -> Work:
        return _nothing if self._answered else partial(self._answer, later.finish())

    def _expire(self) -> None:
        self._answer(self._given_up(too_late(self.operation, self._seconds, self.number)))

    def _given_up(self, error: Answer) -> Answer:
        self._scope.cancel()
        return abandoned(self._exchange, self.operation, error)

    def _answer(self, result: Answer) -> None:
        if self._answered:
            return
        self._answered = True
        if self._timer is not None:
            self._timer.cancel()
        self._finished(self, result)


def _nothing() -> None:
    """For work after which there is nothing to do, yet."""
