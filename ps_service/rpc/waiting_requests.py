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
        # In a queue and not by recursion, because a chain may be long.
        self._due: deque[tuple[Execution, int, Answer]] = deque()
        self._busy = False

    def add(self, execution: Execution, numbers: Sequence[int]) -> None:
        """Lets a request wait until the requests with these numbers have been answered."""
        execution.follows = set(numbers)
        for number in execution.follows:
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
            self.forget(execution)
        return found

    def forget(self, execution: Execution) -> None:
        """Lets a request wait for no other any more, because it has another answer."""
        follows, execution.follows = execution.follows, set()
        for number in follows:
            left = [each for each in self.of.get(number, ()) if each is not execution]
            if left:
                self.of[number] = left
            else:
                self.of.pop(number, None)

    def _go_on(self, execution: Execution, number: int, answer: Answer) -> None:
        if number not in execution.follows:
            return
        execution.follows.discard(number)
        if answer.reply.HasField("error"):
            execution.give_up(failed_before(answer, execution.number))
        elif not execution.follows:
            execution.start()


class Deadlines:
    """Watches the deadlines of a session's queued requests, which are `running`, with one timer for the earliest that
    was known when it was set. One for each request would cost more than many requests do, and nearly all are answered
    long before their deadline."""

    __slots__ = ("_due", "_running", "_timer")

    def __init__(self, running: Mapping[int, Execution]) -> None:
        self._running = running
        # Not a timer always: uvloop runs at once what is due within half a millisecond.
        self._timer: asyncio.Handle | None = None
        self._due = 0.0

    def watch(self, execution: Execution) -> None:
        """Ends a request at its deadline, unless it has been removed by then."""
        loop = asyncio.get_running_loop()
        execution.deadline = deadline = loop.time() + execution.seconds
        if self._timer is None or deadline < self._due:
            self._set(loop, deadline)

    def close(self) -> None:
        """Cancels the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set(self, loop: asyncio.AbstractEventLoop, deadline: float) -> None:
        self.close()
        self._timer, self._due = loop.call_at(deadline, self._look), deadline

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
