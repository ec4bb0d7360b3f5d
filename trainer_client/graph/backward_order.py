"""Passes: backwards of one context, one after the other, and the order of what they find."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ps_wire.errors import CancelledCallError

if TYPE_CHECKING:
    from trainer_client.graph.recorder import WayBack
    from trainer_client.pending import Pending


class Pass:
    """One backward while it runs.

    Args:
        retain_graph: Whether the graph may be used again.
        number: Which backward of its context it is, from one on.
        calls: The recorded calls that it can reach.

    Attributes:
        posts: The gradients that were sent to owners and are still to be waited for, in order.
    """

    def __init__(self, retain_graph: bool, number: int, calls: Iterable[WayBack] | None = None) -> None:
        self.retain_graph = retain_graph
        self.number = number
        self.posts: dict[Pending[Any], None] = {}
        self._after: dict[int, int] = {}
        self._skipped: set[int] = set()
        by_owner: defaultdict[str, list[int]] = defaultdict(list)
        for call in calls or ():
            by_owner[call.session.owner].append(call.number)
        for numbers in by_owner.values():
            numbers.sort(reverse=True)
            self._after.update(zip(numbers, (0, *numbers), strict=False))

    def after(self, number: int) -> int | None:
        """The call after whose gradients an owner adds those of a call: the next later one that it has a part in.

        Returns:
            Its number; 0 if there is none, and None if that is not known.
        """
        after = self._after.get(number)
        while after in self._skipped:
            after = self._after[after]
        return after

    def skip(self, number: int) -> None:
        """A call turned out to have no gradients."""
        self._skipped.add(number)


class Queue:
    """Lets the backwards of a context run one after the other, in the order in which they were asked for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0
        # In order; of those that have begun, what is released when their turn comes.
        self._waiting: dict[int, threading.Lock | None] = {}

    def join(self) -> int:
        """Takes a number: one, two, three ..."""
        with self._lock:
            self._last += 1
            self._waiting[self._last] = None
            return self._last

    def withdraw(self, number: int) -> None:
        """Gives a number back, unless its turn was asked for."""
        with self._lock:
            if number in self._waiting and self._waiting[number] is None:
                self._leave(number)

    @contextmanager
    def turn(self, number: int) -> Iterator[None]:
        """Waits for all lower numbers; the next one's turn comes at the end of the block.

        Raises:
            CancelledCallError: The number was given back.
        """
        with self._lock:
            if number not in self._waiting:
                raise CancelledCallError("the backward was cancelled before it began")
            mine = self._waiting[number] = threading.Lock()
            mine.acquire()
            if next(iter(self._waiting)) == number:
                mine.release()
        with mine:
            try:
                yield
            finally:
                with self._lock:
                    self._leave(number)

    def _leave(self, number: int) -> None:
        """Takes a number out; what waits for it goes on."""
        was_first = next(iter(self._waiting)) == number
        del self._waiting[number]
        following = next(iter(self._waiting.values()), None)
        if was_first and following is not None:
            following.release()


def first_failure(posts: Iterable[Pending[Any]]) -> Exception | None:
    """Waits for every post, so that nothing of the pass is left running, and gives the first error."""
    failure = None
    for post in posts:
        try:
            post.wait()
        except Exception as error:
            failure = failure or error
    return failure
