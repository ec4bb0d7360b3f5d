"""Flight: the requests of a session that an owner has not answered, and those that wait for room there."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ps_wire.limits import SMALL_BYTES

if TYPE_CHECKING:
    from trainer_client.session.in_flight import InFlightRequest


class RequestWindow:
    """Keeps requests until they are answered, and says which may be sent.

    An owner takes so many requests of one session, and so many bytes of large ones. Large requests wait for each other
    in order; small ones, and those that another request waits for, go past them.

    Attributes:
        unanswered: Those that were sent, by number.
        max_requests: How many an owner takes at once; 0 while that is not known.
        max_bytes: How many bytes of large requests it takes; 0 if it has no limit, or none is known.
    """

    def __init__(self) -> None:
        self.unanswered: dict[int, InFlightRequest] = {}
        self.max_requests = 0
        self.max_bytes = 0
        self._waiting: deque[InFlightRequest] = deque()
        self._large: deque[InFlightRequest] = deque()
        self._bytes = 0
        self._last_number = 0

    def admits(self, in_flight: InFlightRequest) -> bool:
        """Whether a request may be sent now; if not, it is kept until `due` gives it."""
        if self.max_requests and len(self.unanswered) >= self.max_requests:
            self._waiting.append(in_flight)
            return False
        if _is_counted(in_flight) and (self._large or not self._fits(in_flight)):
            self._large.append(in_flight)
            return False
        return True

    def add(self, in_flight: InFlightRequest) -> None:
        """A request is sent: it gets the next number."""
        in_flight.counted = in_flight.nbytes if _is_counted(in_flight) else 0
        self._bytes += in_flight.counted
        self._last_number += 1
        in_flight.number = in_flight.frame.number = self._last_number
        self.unanswered[in_flight.number] = in_flight

    def due(self) -> Iterator[InFlightRequest]:
        """Those that may be sent by now. Each has to be added before the next is asked for."""
        while self._large and self._has_room and (self._large[0].finished or self._fits(self._large[0])):
            in_flight = self._large.popleft()
            if not in_flight.finished:
                yield in_flight
        while self._waiting and self._has_room:
            in_flight = self._waiting.popleft()
            if not in_flight.finished and self.admits(in_flight):
                yield in_flight

    def take(self, number: int) -> InFlightRequest | None:
        """The unanswered request of that number, which is one no more."""
        in_flight = self.unanswered.pop(number, None)
        if in_flight is not None:
            self.discount(in_flight)
        return in_flight

    def discount(self, in_flight: InFlightRequest) -> None:
        """The payload of a request counts no more."""
        self._bytes -= in_flight.counted
        in_flight.counted = 0

    def clear(self) -> list[InFlightRequest]:
        """Lets go of all requests, and returns them."""
        in_flight = [*self.unanswered.values(), *self._waiting, *self._large]
        self.unanswered.clear()
        self._waiting.clear()
        self._large.clear()
        self._bytes = 0
        return in_flight

    @property
    def _has_room(self) -> bool:
        return len(self.unanswered) < self.max_requests

    def _fits(self, in_flight: InFlightRequest) -> bool:
        """Whether the owner has space for a large request beside the unanswered ones."""
        return not self.max_bytes or not self._bytes or self._bytes + in_flight.nbytes <= self.max_bytes


def _is_counted(in_flight: InFlightRequest) -> bool:
    """Whether its payload counts; not if a request waits for it, which would have to wait for itself."""
    return in_flight.nbytes > SMALL_BYTES and not in_flight.frame.request.depth
