"""The current context of a task or thread, and the open ones of a client.

Owners see only the contexts that call them. So the request that ends a context also tells which others have ended. An
owner can then tell a late request of an ended pass from the first request of a new one.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final
from weakref import ReferenceType, ref

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trainer_client.graph.nodes import Pass
    from trainer_client.graph.recorder import RecordingPass

entered: Final[ContextVar[RecordingPass | None]] = ContextVar("trainer_client_context", default=None)
"""The context whose block this task or thread is in; see `current_context`."""

_MOST_TOLD: Final = 64


def current_context() -> RecordingPass | None:
    """The context whose block this task or thread is in; None outside of such blocks, and after a step has ended it."""
    context = entered.get()
    return None if context is None or context.finished else context


@contextmanager
def inside(context: RecordingPass | None) -> Iterator[None]:
    """Makes a context the current one during a block, without ending it afterwards."""
    token = entered.set(context)
    try:
        yield
    finally:
        entered.reset(token)


class Openings:
    """Numbers contexts, and lists those that may still be used. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0
        self._unsaid = 0
        # A context without references cannot be used any more, even if it was never ended. None: it is being made.
        self._open: dict[int, ReferenceType[Pass] | None] = {}

    def number(self) -> int:
        """The number for a new context: 1, 2, 3 … From now on it counts as open."""
        with self._lock:
            self._last += 1
            self._open[self._last] = None
            return self._last

    def last(self) -> int:
        """The last number that was given; 0 if there was none."""
        return self._last

    def opened(self, context: Pass, dropped: Callable[[], object] | None = None) -> None:
        """Adds an open context. If it is freed before it has ended, maybe by the garbage collector, in any thread,
        `dropped` is called, which must not refer to it.
        """
        number = context.id.number

        def freed(_: Any) -> None:
            if self._open.pop(number, None) is not None and dropped is not None:
                dropped()

        self._open[number] = ref(context, freed)

    def remove(self, context: Pass) -> None:
        """Removes a context that has ended."""
        with self._lock:
            self._open.pop(context.id.number, None)

    def ended_with(self, context: Pass) -> tuple[int, list[int]]:
        """A number, and exceptions below it: with this context all others below have ended.

        0 if that is too long to tell.
        """
        with self._lock:
            # The garbage collector may remove entries meanwhile; `list` copies the numbers without interruption.
            still = list(self._open)
            if context.id.number in still:
                still.remove(context.id.number)
            self._unsaid += 1
            if len(still) > _MOST_TOLD and self._unsaid < len(still):
                return 0, []
            self._unsaid = 0
            return self._last + 1, sorted(still)
