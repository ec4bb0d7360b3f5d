"""Collects what concurrent callers ask for, and asks for it at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from ps_wire.runtime.failures import Failure
from trainer_client.pending import Pending

A = TypeVar("A")
R = TypeVar("R")


class Window(Generic[A, R]):
    """Questions that come within some seconds of the first are asked together, or as soon as their sizes are `most` in
    all. `ask` gives their answers, in the same order. If it raises, each question is asked alone, so that one which is
    wrong does not fail the others. It may be used from any thread; `ask` runs on the loop.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        ask: Callable[[Sequence[A]], Coroutine[Any, Any, Sequence[R]]],
        seconds: float,
        most: int,
    ) -> None:
        self._loop = loop
        self._ask = ask
        self._seconds = seconds
        self._most = most
        self._waiting: list[tuple[A, Pending[R]]] = []
        self._size = 0
        self._timer: asyncio.TimerHandle | None = None

    def add(self, question: A, size: int) -> Pending[R]:
        """Asks with the others. Cancelling the answer does not cancel the question of the others."""
        pending = Pending[R](self._loop)
        if asyncio._get_running_loop() is self._loop:
            self._take(question, size, pending)
        else:
            self._loop.call_soon_threadsafe(self._take, question, size, pending)
        return pending

    def _take(self, question: A, size: int, pending: Pending[R]) -> None:
        if self._size and self._size + size > self._most:
            self._close()
        self._waiting.append((question, pending))
        self._size += size
        if self._size >= self._most or not self._seconds:
            self._close()
        elif self._timer is None:
            self._timer = self._loop.call_later(self._seconds, self._close)

    def _close(self) -> None:
        """Asks what has been collected."""
        if self._timer is not None:
            self._timer.cancel()
        waiting = [each for each in self._waiting if not each[1].settled]
        self._waiting, self._size, self._timer = [], 0, None
        if waiting:
            asking = self._loop.create_task(self._answer(waiting))
            asking.add_done_callback(partial(_end, waiting))

    async def _answer(self, waiting: Sequence[tuple[A, Pending[R]]]) -> None:
        try:
            answers = await self._ask([question for question, _ in waiting])
        except Exception as error:
            if len(waiting) == 1:
                waiting[0][1].resolve(Failure(error))
                return
            await asyncio.gather(*(self._answer([each]) for each in waiting))
            return
        for (_, pending), answer in zip(waiting, answers, strict=True):
            pending.resolve(result=answer)


def _end(waiting: Sequence[tuple[Any, Pending[Any]]], task: asyncio.Task[None]) -> None:
    """Lets nobody wait for a task that was cancelled, with its loop, or has failed."""
    error = asyncio.CancelledError() if task.cancelled() else task.exception()
    for _, pending in waiting:
        if error is not None:
            pending.resolve(Failure(error))
