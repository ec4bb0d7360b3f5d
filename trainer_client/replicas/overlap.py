"""The pushes of a replica in their order, and those that are under way while the next forward runs."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ps_wire.errors import InvalidArgumentError, PsError
from trainer_client.pending import Pending, raiser

if TYPE_CHECKING:
    from trainer_client.contexts.stepped import Stepped


class Overlap:
    """Keeps the latest pushes, and returns the one before them.

    An owner may run requests that come together in any order, and the steps of a replica have one. So a push is sent
    when the one before has ended, well or not.

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
        # Done when the latest push and all before it have ended.
        self._turn: Pending[None] | None = None

    def push(self, send: Callable[[], Pending[Any]]) -> Pending[Stepped | None]:
        """Makes a push in its turn.

        Args:
            send: Sends it.

        Returns:
            The push to wait for now; one whose result is None if there is none.
        """
        before, turn = self._turn, Pending[None](self._loop)
        self._turn = turn
        if before is None or before.settled:
            pending = send()
            pending.on_done(partial(turn.resolve, _nothing))
        else:
            pending = self._later(before, turn, send)
        self._in_flight.append(pending)
        return self._in_flight.popleft() if len(self._in_flight) > self.most else self.nothing()

    def _later(
        self, before: Pending[None], turn: Pending[None], send: Callable[[], Pending[Any]]
    ) -> Pending[Stepped | None]:
        """Sends once the pushes before have ended. Resolves `turn` when this one has ended, too."""
        sent: list[Pending[Any]] = []

        def begin() -> None:
            if done.settled:
                turn.resolve(_nothing)  # it was cancelled
                return
            try:
                pending = send()
            except BaseException as error:
                done.resolve(raiser(error))
                turn.resolve(_nothing)
                return
            sent.append(pending)
            pending.on_done(lambda: done.resolve(pending.result))
            pending.on_done(partial(turn.resolve, _nothing))

        def cancel() -> None:
            for each in sent:
                each.cancel()

        done: Pending[Stepped | None] = Pending(self._loop, cancel)
        before.on_done(begin)
        return done

    def nothing(self) -> Pending[Stepped | None]:
        """What becomes of a push that was not made."""
        made: Pending[Stepped | None] = Pending(self._loop)
        made.resolve(_nothing)
        return made

    def finish(self) -> Pending[list[Stepped | None]]:
        """Waits for all of them. The result has what became of each; or it is the first error, once all have ended."""
        waiting = list(self._in_flight)
        self._in_flight.clear()
        return Pending.run(self._loop, _all(waiting))


def _nothing() -> None:
    """The outcome of what has no result."""


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
