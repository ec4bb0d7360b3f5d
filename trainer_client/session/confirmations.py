"""Confirms answers to the owner, which keeps each answer until it is confirmed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from ps_wire.limits import MIB

_DELAY_SECONDS: Final = 0.1
"""Delay after which answers are confirmed, if no request has confirmed them before."""

_MOST_BYTES: Final = 16 * MIB
"""Payload bytes above which answers are confirmed at once, because the owner keeps the payloads meanwhile."""


class Confirmations:
    """Collects the numbers of answers, and sends them after a short delay, unless a request has taken them."""

    def __init__(self, loop: asyncio.AbstractEventLoop, send: Callable[[Sequence[int]], bool]) -> None:
        self._loop = loop
        self._send = send
        self.numbers: list[int] = []
        self._bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def add(self, number: int, nbytes: int) -> None:
        """Adds an answer that has arrived, with a payload of so many bytes."""
        self._bytes = nbytes if not self.numbers else self._bytes + nbytes
        self.numbers.append(number)
        if self._bytes >= _MOST_BYTES:
            self._tell()
        elif self._timer is None:
            self._timer = self._loop.call_later(_DELAY_SECONDS, self._ring)

    def stop(self) -> None:
        """Cancels the timer, which would keep the session alive until it fires."""
        if self._timer is not None:
            self._timer.cancel()

    def _ring(self) -> None:
        self._timer = None
        self._tell()

    def _tell(self) -> None:
        if self.numbers and self._send(self.numbers):
            self.numbers.clear()
