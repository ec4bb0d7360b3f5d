"""Limits the bytes of messages that sessions hold on an owner, and orders the sessions that wait for space.

What holds messages has three bounds, so that none can deadlock:

- Requests that are read, queued or running. A trainer knows its budget; a session that sends more, or any session while
  all together hold too much, is not read from until there is space. This ends, because these requests finish by
  themselves. A session that holds nothing may always send one message of any allowed size. Small messages do not count:
  their number is bounded, and they are read unless they are queued behind a large one.
- Answers that are not sent or confirmed. Above the budget, calls with large answers stay in the queue. The session is
  still read from, so that its confirmations arrive.
- Requests that wait for others, which may be queued behind unread messages: they would deadlock if they were paused.
  They have the same budget a second time; above it further requests are refused.

A message that waits for longer than its caller would is refused, so that every pause ends.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from ps_wire.errors import OverloadedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ps_wire.limits import Limits

LONGEST_PAUSE_SECONDS: Final = 60.0
"""Seconds that a message whose caller has set no timeout waits to be admitted."""


class Group(Protocol):
    """Sessions whose requests have a bound together."""

    request_bytes: int

    def has_room(self, nbytes: int) -> bool:
        """Whether a request of so many bytes may be read now; any may if no other is."""

    def no_room(self, nbytes: int) -> OverloadedError:
        """The error for one that may not."""


@dataclass(slots=True, eq=False)
class Holding:
    """The bytes that large messages of one session hold: requests that are read, queued or running, those that are
    waiting for others, and answers that are being sent and are not kept. The requests count for `groups`, too."""

    groups: tuple[Group, ...] = ()

    requests: int = 0
    waiting: int = 0
    unsent: int = 0


class Budget:
    """Counts and limits the message bytes of all sessions of an owner, with their sums. Used on the event loop."""

    def __init__(self, limits: Limits) -> None:
        self.requests = 0
        self.waiting = 0
        self.unsent = 0
        self.pauses = 0
        self.refusals = 0
        self.groups_of: Callable[[bytes], tuple[Group, ...]] | None = None
        self._limits = limits
        self._holdings: dict[bytes, Holding] = {}
        self._paused: list[tuple[Holding, asyncio.Future[None]]] = []

    def of(self, trainer: bytes) -> Holding:
        """The holding of a trainer's session; created if missing."""
        holding = self._holdings.get(trainer)
        if holding is None:
            groups = () if self.groups_of is None else self.groups_of(trainer)
            holding = self._holdings[trainer] = Holding(groups)
        return holding

    def regroup(self, trainer: bytes) -> None:
        """A session that holds nothing counts for other groups from now on, if it belongs to others."""
        holding = self._holdings.get(trainer)
        if self.groups_of is not None and holding is not None and not holding.requests:
            holding.groups = self.groups_of(trainer)

    def held_by(self, trainer: bytes) -> Holding:
        """The holding of a trainer's session, for reading."""
        return self._holdings.get(trainer) or Holding()

    def forget(self, trainer: bytes) -> None:
        """Removes a session that has ended. Its running requests count until they end."""
        self._holdings.pop(trainer, None)

    @property
    def paused(self) -> int:
        """Number of sessions that are paused now."""
        return len(self._paused)

    def take(self, holding: Holding, nbytes: int) -> None:
        """Counts a request that begins to arrive."""
        holding.requests += nbytes
        self.requests += nbytes
        for group in holding.groups:
            group.request_bytes += nbytes

    def release(self, holding: Holding, nbytes: int) -> None:
        """Counts a request's payload as freed."""
        holding.requests -= nbytes
        self.requests -= nbytes
        for group in holding.groups:
            group.request_bytes -= nbytes
        if self._paused:
            self._go_on()

    def begin_wait(self, holding: Holding, nbytes: int) -> None:
        """Counts a request as waiting for other requests; it keeps its payload meanwhile."""
        holding.waiting += nbytes
        self.waiting += nbytes
        self.release(holding, nbytes)

    def end_wait(self, holding: Holding, nbytes: int) -> None:
        """Counts the payload of a request that waited for others as freed."""
        holding.waiting -= nbytes
        self.waiting -= nbytes
        self._go_on()

    def admits(self, holding: Holding, nbytes: int, nested: bool) -> bool:
        """Whether a request with a payload of this length may be read now; a request waits for a `nested` one."""
        if holding.groups and self._full(holding, nbytes, nested) is not None:
            return False
        most = self._limits.max_session_bytes
        if not holding.requests and holding.waiting < most:
            return True
        if holding.requests + holding.waiting + nbytes > 2 * most:
            return False
        if nested:
            return True
        if holding.requests + nbytes > most:
            return False
        if self.requests + nbytes <= self._limits.max_owner_bytes:
            return True
        # All together hold too much: each may hold its share.
        holding_some = sum(1 for each in self._holdings.values() if each.requests)
        return holding.requests + nbytes <= self._limits.max_owner_bytes // max(1, holding_some)

    def refused(self, holding: Holding, nbytes: int, nested: bool) -> OverloadedError:
        """The error for a request that may not be read now."""
        self.refusals += 1
        if (group := self._full(holding, nbytes, nested)) is not None:
            return group.no_room(nbytes)
        return OverloadedError(
            f"a request of {nbytes:,} bytes found no space: requests of this session hold {holding.requests:,} bytes, "
            f"those among them that wait for others {holding.waiting:,} more, and those of all sessions "
            f"{self.requests:,}. Have fewer large requests in flight, or raise max_session_bytes or max_owner_bytes on "
            "the owner"
        )

    @staticmethod
    def _full(holding: Holding, nbytes: int, nested: bool) -> Group | None:
        """The first group that has no room for a request. Others wait for a nested one."""
        return None if nested else next((each for each in holding.groups if not each.has_room(nbytes)), None)

    async def admitted(self, holding: Holding, nbytes: int, nested: bool, seconds: float) -> None:
        """Waits until a request may be read, for at most so many seconds if that is not 0, and counts it from then on.

        Raises `OverloadedError` if the wait took too long, or could end only after later messages are read.
        """
        self.pauses += 1
        try:
            async with asyncio.timeout(seconds or LONGEST_PAUSE_SECONDS):
                while not self.admits(holding, nbytes, nested):
                    if not holding.requests and self._full(holding, nbytes, nested) is None:
                        raise TimeoutError
                    there_is_space: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                    paused = (holding, there_is_space)
                    self._paused.append(paused)
                    try:
                        await there_is_space
                    finally:
                        self._paused.remove(paused)
        except TimeoutError:
            raise self.refused(holding, nbytes, nested) from None
        self.take(holding, nbytes)

    def _go_on(self) -> None:
        """Wakes the paused sessions, the one that holds least first."""
        for _, there_is_space in sorted(self._paused, key=lambda entry: entry[0].requests):
            if not there_is_space.done():
                there_is_space.set_result(None)
