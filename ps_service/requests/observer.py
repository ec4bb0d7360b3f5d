"""The interface through which an execution reports its events."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ps_service.requests.execution import Execution
    from ps_service.sessions.reply_cache import Answer


class Observer:
    """Receives the events of executions on the event loop. `is_full` and `made` are used in any thread.

    Attributes:
        made: Sizes of answers that threads have made and the event loop has not handled yet. A list, because its
            `append` and `remove` are atomic.
    """

    made: list[int]

    @property
    def is_full(self) -> bool:
        """Whether no large answers may be made now."""
        return False

    def hold(self, execution: Execution) -> None:
        """The execution was not begun because the observer is full; the observer calls `submit` later."""

    def begin_wait(self, execution: Execution) -> None:
        """The code that runs for the execution waits for a request of its own."""

    def release(self, execution: Execution, waits: bool = False) -> None:
        """The execution no longer needs its payload; `waits` if it has no answer yet."""

    def finished(self, execution: Execution, answer: Answer) -> None:
        """The execution has its answer."""
