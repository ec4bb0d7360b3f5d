"""The pushes that are under way while the next forward runs."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ps_wire.errors import InvalidArgumentError, PsError
from trainer_client.pending import Pending

if TYPE_CHECKING:
    from trainer_client.contexts.stepped import Stepped


class Overlap:
    """Keeps the latest pushes, and returns the one before them.

    Args:
        loop: The client's event loop.
        most: How many pushes may be under way.

    Attributes:
        most: As the argument.

    Raises:
        InvalidArgumentError: That is no number of pushes.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, most: int) -> None:
        if type(most) is not int or most < 0:
            raise InvalidArgumentError(f"overlap is a number of pushes, not {most!r}")
        self._loop = loop
        self.most = most
        self._in_flight: deque[Pending[Stepped | None]] = deque()

    def add(self, pending: Pending[Stepped | None]) -> Pending[Stepped | None]:
        """Keeps a push, and returns the one to wait for now; one whose result is None if there is none."""
        self._in_flight.append(pending)
        return self._in_flight.popleft() if len(self._in_flight) > self.most else self.nothing()

    def nothing(self) -> Pending[Stepped | None]:
        """What becomes of a push that was not made."""
        made: Pending[Stepped | None] = Pending(self._loop)
        made.resolve(lambda: None)
        return made

    def finish(self) -> Pending[list[Stepped | None]]:
        """Waits for all of them. The result has what became of each; or it is the first error, once all have ended."""
        waiting = list(self._in_flight)
        self._in_flight.clear()
        return Pending.run(self._loop, _all(waiting))


async def _all(waiting: Sequence[Pending[Stepped | None]]) -> list[Stepped | None]:
    results, failed = [], None
    for each in waiting:
        try:
            results.append(await each)
        except PsError as error:
            failed = failed or error
    if failed is not None:
        raise failed
    return results
