"""The requests of a session that wait: for their deadlines, and for earlier ones whose results they take."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ps_service.requests.error_answers import failed_before

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ps_service.requests.execution import Execution
    from ps_service.sessions.reply_cache import Answer


class Followers:
    """Starts requests when those that they follow have been answered. Used on the event loop. `of` has the waiting
    requests, by the number of each request that they follow, which may not have arrived yet."""

    def __init__(self) -> None:
        self.of: dict[int, list[Execution]] = {}
        # By number of a waiting request, the numbers of those that it still follows.
        self._left: dict[int, set[int]] = {}
        # In a queue and not by recursion, because a chain may be long.
        self._due: deque[tuple[Execution, int, Answer]] = deque()
        self._busy = False

    def add(self, execution: Execution, numbers: Sequence[int]) -> None:
        """Lets a request wait until the requests with these numbers have been answered."""
        self._left[execution.number] = set(numbers)
        for number in self._left[execution.number]:
            self.of.setdefault(number, []).append(execution)

    def ended(self, number: int, answer: Answer) -> None:
        """A request was answered: requests that have waited for it only are started, or fail if it has failed."""
        self._due.extend((execution, number, answer) for execution in self.of.pop(number, ()))
        if self._busy:
            return
        self._busy = True
        try:
            while self._due:
                self._go_on(*self._due.popleft())
        finally:
            self._busy = False

    def take(self, number: int) -> list[Execution]:
        """Removes and returns the requests that wait for a request that will not be answered now."""
        found = self.of.get(number, [])[:]
        for execution in found:
            self.forget(execution.number)
        return found

    def forget(self, number: int) -> None:
        """Removes a waiting request that has another answer; does nothing if the number is another's."""
        for followed in self._left.pop(number, ()):
            left = [each for each in self.of.get(followed, ()) if each.number != number]
            if left:
                self.of[followed] = left
            else:
                self.of.pop(followed, None)

    def _go_on(self, execution: Execution, number: int, answer: Answer) -> None:
        left = self._left.get(execution.number)
        if left is None:
            return
        left.discard(number)
        if answer.reply.HasField("error"):
            execution.give_up(failed_before(answer, execution.number))
        elif not left:
            del self._left[execution.number]
            execution.start()


class Deadlines:
    """Watches the deadlines of a session's queued requests, which are `running`, with one timer for the earliest that
    was known when it was set. One for each request would cost more than many requests do, and nearly all are answered
    long before their deadline."""

    __slots__ = ("_at", "_running", "_timer")

    def __init__(self, running: Mapping[int, Execution]) -> None:
        self._running = running
        self._timer: asyncio.TimerHandle | None = None
        self._at = 0.0

    def watch(self, execution: Execution) -> None:
        """Ends a request at its deadline, unless it has been removed by then."""
        loop = asyncio.get_running_loop()
        execution.deadline = deadline = loop.time() + execution.seconds
        if self._timer is None or deadline < self._at:
            self._set(loop, deadline)

    def close(self) -> None:
        """Cancels the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set(self, loop: asyncio.AbstractEventLoop, deadline: float) -> None:
        self.close()
        self._at = deadline
        self._timer = loop.call_at(deadline, self._look)

    def _look(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        now = loop.time()
        for execution in list(self._running.values()):
            if execution.seconds and execution.deadline <= now:
                execution.expire()
        later = [each.deadline for each in self._running.values() if each.deadline > now]
        if later:
            self._set(loop, min(later))
