"""Budget: how many bytes of messages sessions may hold on an owner, and whose turn it is when there are too many.

Three things hold messages: requests that are being read, wait for a thread or run; answers that wait to be sent or
confirmed; and requests that wait for others. Each is bounded in its own way, so that none can wait for itself:

- Requests. A trainer knows its budget and sends large requests as far as they fit. Who sends more, or whose owner
  has too much of all sessions together, is not read from until there is space. That ends, because only requests count
  which come to an end by themselves: those that wait for other requests, which may stand in line behind what is not
  read, count no more. A session that holds nothing is always let in, with one message of any size that is allowed.
  Small messages do not count: their number is bounded, and they are read unless they stand behind a large one.
- Answers. Above the budget the next large answers are not made: the calls stay in the queue. The session is read from
  meanwhile, so that its confirmations arrive.
- Requests that wait for others cannot be paused without danger. They have the same budget once more; beyond that
  further requests are refused.

What stands in the way for longer than its caller would wait is refused, so that no pause is for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from ps_wire.errors import OverloadedError

if TYPE_CHECKING:
    from ps_wire.limits import Limits

LONGEST_PAUSE_SECONDS: Final = 60.0
"""How long a message waits to be let in whose caller has set no time."""


class Holding:
    """The bytes of messages that one session holds. Only those of large messages count.

    Attributes:
        requests: Payloads of requests that are being read, wait for a thread or run.
        waiting: Payloads of requests that wait for others.
        unsent: Answers on their way that nobody keeps.
    """

    __slots__ = ("requests", "unsent", "waiting")

    def __init__(self) -> None:
        self.requests = 0
        self.waiting = 0
        self.unsent = 0


class Budget:
    """What all sessions of an owner hold. To be used on the event loop.

    Args:
        limits: Among them how much that may be.

    Attributes:
        requests: Payload bytes of all requests that count.
        waiting: Those of requests that wait for others.
        unsent: Bytes of answers on their way that nobody keeps.
        pauses: How often a session was not read from, since the start.
        refusals: How many requests were refused because of their bytes.
    """

    def __init__(self, limits: Limits) -> None:
        self.requests = 0
        self.waiting = 0
        self.unsent = 0
        self.pauses = 0
        self.refusals = 0
        self._limits = limits
        self._holdings: dict[bytes, Holding] = {}
        self._paused: list[tuple[Holding, int, asyncio.Future[None]]] = []

    def of(self, trainer: bytes) -> Holding:
        """What a trainer's session holds."""
        return self._holdings.setdefault(trainer, Holding())

    def held_by(self, trainer: bytes) -> Holding:
        """The same to look at only."""
        return self._holdings.get(trainer) or Holding()

    def forget(self, trainer: bytes) -> None:
        """The session is over. What still runs of it counts until it has ended."""
        self._holdings.pop(trainer, None)

    @property
    def paused(self) -> int:
        """How many sessions are not read from at this moment."""
        return len(self._paused)

    @property
    def share(self) -> int:
        """How many bytes each of those who hold some may have when there are too many together."""
        return self._limits.max_owner_bytes // max(1, sum(1 for each in self._holdings.values() if each.requests))

    def take(self, holding: Holding, nbytes: int) -> None:
        """A request of so many bytes has begun to arrive."""
        holding.requests += nbytes
        self.requests += nbytes

    def release(self, holding: Holding, nbytes: int) -> None:
        """It was let go."""
        holding.requests -= nbytes
        self.requests -= nbytes
        self._go_on()

    def begin_wait(self, holding: Holding, nbytes: int) -> None:
        """It waits for other requests, and holds its payload meanwhile."""
        holding.waiting += nbytes
        self.waiting += nbytes
        self.release(holding, nbytes)

    def end_wait(self, holding: Holding, nbytes: int) -> None:
        """A request that waited for others was let go."""
        holding.waiting -= nbytes
        self.waiting -= nbytes
        self._go_on()

    def admits(self, holding: Holding, nbytes: int, nested: bool) -> bool:
        """Whether a request of so many bytes may be read now.

        Args:
            holding: What its session holds.
            nbytes: Length of its payload.
            nested: Whether a request waits for it.
        """
        most = self._limits.max_session_bytes
        if not holding.requests and holding.waiting < most:
            return True
        if holding.requests + holding.waiting + nbytes > 2 * most:
            return False
        if nested:
            return True
        if holding.requests + nbytes > most:
            return False
        return self.requests + nbytes <= self._limits.max_owner_bytes or holding.requests + nbytes <= self.share

    async def admitted(self, holding: Holding, nbytes: int, nested: bool, seconds: float) -> None:
        """Waits until a request may be read; it counts from then on.

        Args:
            holding: What its session holds.
            nbytes: Length of its payload.
            nested: Whether a request waits for it.
            seconds: How long its caller will wait; 0 for as long as it takes.

        Raises:
            OverloadedError: That took too long, or would take until others have been read that come later.
        """
        self.pauses += 1
        try:
            async with asyncio.timeout(seconds or LONGEST_PAUSE_SECONDS):
                while not self.admits(holding, nbytes, nested):
                    if not holding.requests:
                        raise TimeoutError
                    with self._pausing(holding, nbytes) as there_is_space:
                        await there_is_space
        except TimeoutError:
            self.refusals += 1
            raise OverloadedError(
                f"a request of {nbytes:,} bytes found no space: requests of this session hold "
                f"{holding.requests:,} bytes, those among them that wait for others {holding.waiting:,} more, and "
                f"those of all sessions {self.requests:,}. Have fewer large requests in flight, or raise "
                "max_session_bytes or max_owner_bytes on the owner"
            ) from None
        self.take(holding, nbytes)

    @contextmanager
    def _pausing(self, holding: Holding, nbytes: int) -> Iterator[asyncio.Future[None]]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (holding, nbytes, future)
        self._paused.append(entry)
        try:
            yield future
        finally:
            self._paused.remove(entry)

    def _go_on(self) -> None:
        """Lets those look again who are paused: first who holds least."""
        for _, _, future in sorted(self._paused, key=lambda entry: entry[0].requests):
            if not future.done():
                future.set_result(None)
