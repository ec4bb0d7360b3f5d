"""The restores of a table: of two at once, the rows of one alone stay."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from ps_wire.errors import InvalidArgumentError
from ps_wire.runtime.locks import ReportingLock


class Restores:
    """Which restore puts rows into an owner's part of a table: the one that has begun last.

    A restore has a number, which the first of its owners gives and the others are told. A later one has a larger number
    on all owners, so exactly one of several ends. Checkpoints have the `latest` number, 0 if there was none. The clock
    counts microseconds since 1970: numbers grow also if that was lost.
    """

    def __init__(self, title: str, clock: Callable[[], int] = lambda: time.time_ns() // 1000) -> None:
        self._title: Final = title
        self._clock: Final = clock
        # Held while rows are put, so that none of an earlier restore come after a later one has begun.
        self._lock: Final = ReportingLock()
        self.latest = 0

    def begin(self, number: int, clear: Callable[[], None]) -> int:
        """Begins a restore, which removes all rows with `clear`. Returns its number; given 0, the owner chooses it.
        Raises `InvalidArgumentError`, with no row removed, if a later one has begun."""
        with self._lock:
            if type(number) is int and not number:
                number = max(self.latest + 1, self._clock())
            self._check(number)
            clear()
            return number

    @contextmanager
    def going_on(self, number: int) -> Iterator[None]:
        """A block that puts rows of a restore. Raises `InvalidArgumentError` if a later one has begun."""
        with self._lock:
            self._check(number)
            yield

    def _check(self, number: int) -> None:
        if type(number) is not int or number <= 0:
            raise InvalidArgumentError(f"the number of a restore is a whole number above 0, not {number!r}")
        if number < self.latest:
            raise InvalidArgumentError(
                f"another restore of {self._title} has begun meanwhile, and has removed the rows of this one: the "
                "table will have the rows of that one alone"
            )
        self.latest = number
