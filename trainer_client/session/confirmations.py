"""Confirmations: the answers that arrived, told to the owner, who keeps each until then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from ps_wire.limits import MIB

if TYPE_CHECKING:
    from ps_wire.v1.frames_pb2 import Request

_DELAY_SECONDS: Final = 0.1
"""After which answers are confirmed, if no request has carried the news before."""

_MOST_BYTES: Final = 16 * MIB
"""Payload of answers that are confirmed at once, because the owner keeps it meanwhile."""


class Confirmations:
    """Collects the numbers of answers, and has them sent with the next request, or soon.

    Args:
        loop: The session's event loop.
        send: Sends numbers to the owner; returns whether that is possible now.

    Attributes:
        numbers: Those that are to be told.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, send: Callable[[Sequence[int]], bool]) -> None:
        self._loop = loop
        self._send = send
        self.numbers: list[int] = []
        self._bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def add(self, number: int, nbytes: int) -> None:
        """An answer has arrived.

        Args:
            number: Of its request.
            nbytes: Length of its payload.
        """
        self.numbers.append(number)
        self._bytes += nbytes
        if self._bytes >= _MOST_BYTES:
            self._tell()
        elif self._timer is None:
            self._timer = self._loop.call_later(_DELAY_SECONDS, self._ring)

    def go_with(self, request: Request) -> None:
        """A request carries the news."""
        request.confirmed.extend(self.numbers)
        self.numbers.clear()
        self._bytes = 0

    def clear(self) -> None:
        """Nothing is to be told any more."""
        self.numbers.clear()
        self._bytes = 0

    def stop(self) -> None:
        """Ends the timer, which would keep the session, and all it holds, until it rings."""
        if self._timer is not None:
            self._timer.cancel()

    def _ring(self) -> None:
        self._timer = None
        self._tell()

    def _tell(self) -> None:
        if self.numbers and self._send(self.numbers):
            self.clear()
