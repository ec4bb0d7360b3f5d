"""Passes: backwards of one context, one after the other, and the order of what they find."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

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
        posts: The gradients sent to owners so far.
    """

    def __init__(self, retain_graph: bool, number: int, calls: Iterable[WayBack] | None = None) -> None:
        self.retain_graph = retain_graph
        self.number = number
        self.posts: list[Pending[Any]] = []
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
        self._changed = threading.Condition()
        self._last = 0
        self._waiting: set[int] = set()
        self._begun: set[int] = set()

    def join(self) -> int:
        """Takes a number: one, two, three ..."""
        with self._changed:
            self._last += 1
            self._waiting.add(self._last)
            return self._last

    def withdraw(self, number: int) -> None:
        """Gives a number back, unless its turn was asked for."""
        with self._changed:
            if number not in self._begun:
                self._waiting.discard(number)
                self._changed.notify_all()

    @contextmanager
    def turn(self, number: int) -> Iterator[None]:
        """Waits for all lower numbers; the next one's turn comes at the end of the block."""
        with self._changed:
            self._begun.add(number)
            while min(self._waiting) != number:
                self._changed.wait()
        try:
            yield
        finally:
            with self._changed:
                self._waiting.discard(number)
                self._begun.discard(number)
                self._changed.notify_all()


def first_failure(posts: list[Pending[Any]]) -> Exception | None:
    """Waits for every post, so that nothing of the pass is left running, and gives the first error."""
    failure = None
    for post in posts:
        try:
            post.wait()
        except Exception as error:
            failure = failure or error
    return failure
