"""Assembles messages from the parts that arrive on one connection."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ps_wire.codec.payload import Buffer, joined
from ps_wire.connections.buffers import LARGE_BYTES, RECEIVED, RECLAIMER
from ps_wire.errors import InvalidArgumentError, OverloadedError, TooLargeError
from ps_wire.limits import SMALL_BYTES

if TYPE_CHECKING:
    from ps_wire.connections.frames import Packet
    from ps_wire.errors import PsError
    from ps_wire.v1.frames_pb2 import Frame


class Message(NamedTuple):
    """A whole message. Its payload is writable and not shared; one that was refused has an error, and no payload."""

    frame: Frame
    payload: Buffer | None = None
    error: PsError | None = None


class _Partial:
    __slots__ = ("buffer", "filled", "frame", "placed")

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.buffer = RECEIVED.take(frame.payload_bytes)
        self.filled = 0
        self.placed: memoryview | None = None

    def place(self, offset: int, nbytes: int) -> memoryview | None:
        """The memory of a part, to receive it into; None if it is not the next part."""
        end = offset + nbytes
        self.placed = self.buffer.data[offset:end] if offset == self.filled and end <= len(self.buffer) else None
        return self.placed

    def add(self, payload: tuple[memoryview, ...]) -> bool:
        """Adds a part to the payload; returns whether the message is complete."""
        view = self.buffer.data
        if self.placed is not None and payload and payload[0] is self.placed:
            # It was received into its place.
            self.filled += len(self.placed)
            self.placed = None
            return self.filled == len(view)
        for chunk in payload:
            if self.filled + len(chunk) > len(view):
                raise InvalidArgumentError(f"message {self.frame.number} is longer than it announced")
            view[self.filled : self.filled + len(chunk)] = chunk
            self.filled += len(chunk)
        return self.filled == len(view)


class Assembler:
    """Assembles packets into messages.

    A payload of more than `max_message_bytes` is refused before memory is allocated. Of small messages, which count
    towards no budget, at most `max_small` may be incomplete; one more is refused unless it arrives whole. Large ones
    may all arrive at once: the budgets of the owner bound their bytes.
    """

    def __init__(self, max_message_bytes: int, max_small: float = math.inf) -> None:
        self._limit = max_message_bytes
        self._max_small = max_small
        self._small = 0
        self._partial: dict[int, _Partial] = {}
        self._refused: dict[int, int] = {}

    def feed(self, packet: Packet) -> Message | None:
        """Adds a packet, and returns the message that it completes; None if it completes none.

        After the `InvalidArgumentError` for a packet that does not fit those before it, the connection cannot be used
        any more.
        """
        frame, payload = packet
        announced = frame.payload_bytes
        if frame.HasField("part"):
            return self._continue(frame.number, packet)
        if not announced and not payload:
            return Message(frame)
        number = frame.number
        arrived = sum(map(len, payload))
        if announced >= LARGE_BYTES:
            RECLAIMER.used()
        if arrived > announced:
            raise InvalidArgumentError(f"message {number} is longer than it announced")
        if number in self._partial or number in self._refused:
            raise InvalidArgumentError(f"message {number} began again before it was whole")
        if announced > self._limit:
            too_large = TooLargeError(
                f"the message has a payload of {announced:,} bytes; the limit is {self._limit:,}. "
                "Send it in smaller pieces, or raise max_message_bytes on the owner"
            )
            return self.refuse(packet, too_large)
        if arrived == announced:
            # A single writable chunk is used without a copy.
            is_usable = len(payload) == 1 and not payload[0].readonly
            return Message(frame, np.frombuffer(payload[0], np.uint8) if is_usable else joined(payload, arrived))
        if announced <= SMALL_BYTES:
            if self._small >= self._max_small:
                too_many = OverloadedError(
                    f"{self._small} small messages of this session have begun and are not whole. "
                    "Send them whole, or fewer at once"
                )
                return self.refuse(packet, too_many)
            self._small += 1
        partial = self._partial[number] = _Partial(frame)
        partial.add(payload)
        return None

    def place(self, frame: Frame, nbytes: int) -> memoryview | None:
        """The memory for the payload of a frame, if it is the next part of a message; see `Place`."""
        partial = self._partial.get(frame.number)
        return None if partial is None or not frame.HasField("part") else partial.place(frame.part.offset, nbytes)

    def refuse(self, packet: Packet, error: PsError) -> Message:
        """A refused message for the one that begins with a packet; its other parts are dropped."""
        number = packet.frame.number
        to_come = packet.frame.payload_bytes - packet.nbytes
        if to_come > 0:
            self._refused[number] = to_come
        return Message(packet.frame, error=error)

    def _continue(self, number: int, packet: Packet) -> Message | None:
        if packet.frame.payload_bytes:
            raise InvalidArgumentError(f"a part of message {number} announces a payload")
        if number in self._refused:
            self._refused[number] -= packet.nbytes
            if self._refused[number] <= 0:
                del self._refused[number]
            return None
        partial = self._partial.get(number)
        if partial is None:
            raise InvalidArgumentError(f"a part of message {number}, which did not begin")
        if packet.frame.part.offset != partial.filled:
            raise InvalidArgumentError(
                f"a part of message {number} begins at {packet.frame.part.offset}, where {partial.filled} was expected"
            )
        if not partial.add(packet.payload):
            return None
        del self._partial[number]
        if partial.frame.payload_bytes <= SMALL_BYTES:
            self._small -= 1
        return Message(partial.frame, partial.buffer)
