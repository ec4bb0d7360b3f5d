"""One direction of a link: packets are sent one after the other at a rate, and arrive after a delay."""

from __future__ import annotations

from collections import deque


class Line:
    """Holds packets until they arrive at the other end.

    Args:
        delay: Seconds from the end of sending until arrival.
        rate: Bytes per second; 0 for no limit.

    Attributes:
        sent: Bytes that were put in.
    """

    def __init__(self, delay: float, rate: float) -> None:
        self._delay = delay
        self._seconds_per_byte = 1 / rate if rate else 0.0
        self._free = 0.0
        self._packets: deque[tuple[float, bytes]] = deque()
        self.sent = 0

    def put(self, packet: bytes, now: float) -> None:
        """Takes a packet in, to be sent when the packets before it are."""
        self._free = max(now, self._free) + len(packet) * self._seconds_per_byte
        self._packets.append((self._free + self._delay, packet))
        self.sent += len(packet)

    def arrived(self, now: float) -> bytes | None:
        """The next packet that has arrived, or None."""
        if self._packets and self._packets[0][0] <= now:
            return self._packets.popleft()[1]
        return None

    def next_arrival(self) -> float | None:
        """When the next packet arrives, or None if the line is empty."""
        return self._packets[0][0] if self._packets else None
