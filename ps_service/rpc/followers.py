"""The requests of a session that wait until earlier ones, whose results they take as arguments, are answered."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ps_service.requests.error_answers import failed_before

if TYPE_CHECKING:
    from ps_service.requests.execution import Execution
    from ps_service.sessions.reply_cache import Answer


class Followers:
    """Starts requests when those that they follow have been answered. Used on the event loop.

    Attributes:
        of: The waiting requests, by the number of each request that they follow. That one may not have arrived yet.
    """

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
