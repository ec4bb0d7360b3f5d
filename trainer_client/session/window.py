"""The request window: the unanswered requests of a session, and requests that wait until there is room for them."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ps_wire.errors import TooLargeError
from ps_wire.limits import MAX_FRAME_BYTES, SMALL_BYTES

if TYPE_CHECKING:
    from ps_wire.v1.frames_pb2 import Welcome
    from trainer_client.session.in_flight import InFlightRequest


class RequestWindow:
    """Keeps requests until they are answered, and decides which may be sent.

    An owner limits the number of requests of a session, and the bytes of large ones. Large requests wait for each
    other in order; small ones, and those that another request waits for, overtake them.

    Others than the `unanswered` ones wait because these are too many (`waiting`), or hold too many bytes (`large`), or
    because one that they follow has no number yet (`blocked`). Limits of 0 are not known. `last_number` is the last
    one that was given.
    """

    def __init__(self) -> None:
        self.unanswered: dict[int, InFlightRequest[Any]] = {}
        self.waiting: deque[InFlightRequest[Any]] = deque()
        self.large: deque[InFlightRequest[Any]] = deque()
        self.blocked: list[InFlightRequest[Any]] = []
        self.max_requests = 0
        self.max_bytes = 0
        self.max_message_bytes = math.inf
        self.last_number = 0
        self._bytes = 0

    def set_limits(self, welcome: Welcome) -> None:
        """Takes the limits from the welcome of an owner."""
        self.max_requests, self.max_bytes = welcome.max_in_flight, welcome.max_session_bytes
        self.max_message_bytes = welcome.max_message_bytes or math.inf

    def refusal(self, in_flight: InFlightRequest[Any], frame_bytes: int, owner: str) -> TooLargeError:
        """The error of a request that is not sent, because its payload or its frame is too large."""
        if in_flight.nbytes > self.max_message_bytes:
            return TooLargeError(
                f"the request has {in_flight.nbytes:,} bytes of tensors; owner {owner!r} accepts at most "
                f"{self.max_message_bytes:,}. Send them in smaller pieces, or raise max_message_bytes there"
            )
        return TooLargeError(
            f"the request has {frame_bytes:,} bytes besides its tensors; at most {MAX_FRAME_BYTES:,} are allowed. "
            "Send large data as tensors"
        )

    def requests(self) -> list[InFlightRequest[Any]]:
        """All requests, sent or waiting."""
        return [*self.unanswered.values(), *self.waiting, *self.large, *self.blocked]

    def admit(self, in_flight: InFlightRequest[Any], first: bool = False) -> bool:
        """Numbers a request that may be sent now, as the first large one that fits may; or keeps it for `due`."""
        if self.max_requests and len(self.unanswered) >= self.max_requests:
            self.waiting.append(in_flight)
            return False
        # A nested request does not count: the request that it is nested in would wait for itself.
        if in_flight.nbytes > SMALL_BYTES and not in_flight.frame.request.depth:
            if not first and (self.large or not self._fits(in_flight)):
                self.large.append(in_flight)
                return False
            in_flight.counted = in_flight.nbytes
            self._bytes += in_flight.counted
        self.last_number += 1
        in_flight.number = in_flight.frame.number = self.last_number
        self.unanswered[in_flight.number] = in_flight
        return True

    def due(self) -> Iterator[InFlightRequest[Any]]:
        """Numbers and yields the waiting requests that may be sent now."""
        while self.large and self._has_room and (self.large[0].settled or self._fits(self.large[0])):
            in_flight = self.large.popleft()
            if not in_flight.settled and self.admit(in_flight, first=True):
                yield in_flight
        while self.waiting and self._has_room:
            in_flight = self.waiting.popleft()
            if not in_flight.settled and self.admit(in_flight):
                yield in_flight

    def discount(self, in_flight: InFlightRequest[Any]) -> None:
        """Stops counting the payload of a request."""
        self._bytes -= in_flight.counted
        in_flight.counted = 0

    def clear(self) -> list[InFlightRequest[Any]]:
        """Removes and returns all requests."""
        in_flight = self.requests()
        self.unanswered.clear()
        self.waiting.clear()
        self.large.clear()
        self.blocked.clear()
        self._bytes = 0
        return in_flight

    @property
    def _has_room(self) -> bool:
        return len(self.unanswered) < self.max_requests

    def _fits(self, in_flight: InFlightRequest[Any]) -> bool:
        """Whether the owner has space for a large request beside the unanswered ones."""
        return not self.max_bytes or not self._bytes or self._bytes + in_flight.nbytes <= self.max_bytes
