"""The requests that a thread makes while torch's profiler runs in it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ps_wire.v1.probes_pb2 import Profile

MAX_RANGES: Final = 10_000
"""Most requests of one thread that are kept until its profiler ends. Later ones are not profiled."""


class Range:
    """One request, from when it was made until its answer came.

    `key` is its name in the profile: what was called, by which process, and in which process. `node` is the number of
    this process in its group, -1 if it is in none, and `owner_node` that of the owner in the group, or among the owners
    of this process. Times are in nanoseconds since 1970; `ended_ns` is 0 before the answer, or before it is given up.
    `profile` is what the owner's profiler recorded; None if it sent nothing.
    """

    __slots__ = ("began_ns", "ended_ns", "key", "node", "owner_node", "profile", "thread")

    def __init__(self, key: str, node: int, owner_node: int) -> None:
        self.key = key
        self.node = node
        self.owner_node = owner_node
        self.thread = threading.get_native_id()
        self.profile: Profile | None = None
        self.ended_ns = 0
        self.began_ns = time.time_ns()

    def end(self, profile: Profile | None = None) -> None:
        """Notes that the answer is there. Only the first call counts."""
        if not self.ended_ns:
            self.ended_ns = time.time_ns()
            self.profile = profile


class _Open(threading.local):
    def __init__(self) -> None:
        self.ranges: list[Range] = []


_open: Final = _Open()


def begin(key: str, node: int, owner_node: int) -> Range | None:
    """Begins the range of a request of this thread; returns None if there are too many already."""
    if len(_open.ranges) >= MAX_RANGES:
        return None
    made = Range(key, node, owner_node)
    _open.ranges.append(made)
    return made


def take() -> list[Range]:
    """Returns and forgets the requests of this thread, because its profiler ends. Some may not be answered."""
    taken, _open.ranges = _open.ranges, []
    return taken


@contextmanager
def collecting() -> Iterator[list[Range]]:
    """A block whose requests in this thread go into a list of their own."""
    before, _open.ranges = _open.ranges, []
    try:
        yield _open.ranges
    finally:
        _open.ranges = before
