"""Flight: the requests of a session that an owner has not answered, and those that wait for room there."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from ps_wire.limits import SMALL_BYTES
from trainer_client.exchange import Exchange


class Flight:
    """Keeps requests until they are answered, and says which may be sent.

    An owner takes so many requests of one session, and so many bytes of large ones. Large requests wait for each other
    in order; small ones, and those that another request waits for, go past them.

    Attributes:
        unanswered: Those that were sent, by number.
        max_requests: How many an owner takes at once; 0 while that is not known.
        max_bytes: How many bytes of large requests it takes; 0 if it has no limit, or none is known.
    """

    def __init__(self) -> None:
        self.unanswered: dict[int, Exchange] = {}
        self.max_requests = 0
        self.max_bytes = 0
        self._waiting: deque[Exchange] = deque()
        self._large: deque[Exchange] = deque()
        self._bytes = 0
        self._last_number = 0

    def admits(self, exchange: Exchange) -> bool:
        """Whether a request may be sent now; if not, it is kept until `due` gives it."""
        if self.max_requests and len(self.unanswered) >= self.max_requests:
            self._waiting.append(exchange)
            return False
        if _is_counted(exchange) and (self._large or not self._fits(exchange)):
            self._large.append(exchange)
            return False
        return True

    def add(self, exchange: Exchange) -> None:
        """A request is sent: it gets the next number."""
        exchange.counted = exchange.nbytes if _is_counted(exchange) else 0
        self._bytes += exchange.counted
        self._last_number += 1
        exchange.number = exchange.frame.number = self._last_number
        self.unanswered[exchange.number] = exchange

    def due(self) -> Iterator[Exchange]:
        """Those that may be sent by now. Each has to be added before the next is asked for."""
        while self._large and self._has_room and (self._large[0].finished or self._fits(self._large[0])):
            exchange = self._large.popleft()
            if not exchange.finished:
                yield exchange
        while self._waiting and self._has_room:
            exchange = self._waiting.popleft()
            if not exchange.finished and self.admits(exchange):
                yield exchange

    def take(self, number: int) -> Exchange | None:
        """The unanswered request of that number, which is one no more."""
        exchange = self.unanswered.pop(number, None)
        if exchange is not None:
            self.discount(exchange)
        return exchange

    def discount(self, exchange: Exchange) -> None:
        """The payload of a request counts no more."""
        self._bytes -= exchange.counted
        exchange.counted = 0

    def clear(self) -> list[Exchange]:
        """Lets go of all requests, and returns them."""
        exchanges = [*self.unanswered.values(), *self._waiting, *self._large]
        self.unanswered.clear()
        self._waiting.clear()
        self._large.clear()
        self._bytes = 0
        return exchanges

    @property
    def _has_room(self) -> bool:
        return len(self.unanswered) < self.max_requests

    def _fits(self, exchange: Exchange) -> bool:
        """Whether the owner has space for a large request beside the unanswered ones."""
        return not self.max_bytes or not self._bytes or self._bytes + exchange.nbytes <= self.max_bytes


def _is_counted(exchange: Exchange) -> bool:
    """Whether its payload counts; not if a request waits for it, which would have to wait for itself."""
    return exchange.nbytes > SMALL_BYTES and not exchange.frame.request.depth
