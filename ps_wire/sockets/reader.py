"""Splits the bytes that arrive on a socket into records, and reads large payloads straight into their memory."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

from google.protobuf.message import DecodeError

from ps_wire.connections.buffers import RECEIVED
from ps_wire.connections.frames import Packet
from ps_wire.errors import InvalidArgumentError
from ps_wire.limits import MAX_FRAME_BYTES, MIB
from ps_wire.sockets.record import HEADER, INLINE
from ps_wire.v1.frames_pb2 import Frame

if TYPE_CHECKING:
    from ps_wire.connections.connection import Place, Traffic

_READ_BYTES: Final = 80 * 1024
"""A message with 64 KiB of tensors fits. What has been read of a longer payload is copied into its memory."""

_PEEK_BYTES: Final = 4 * 1024
"""Read after a large payload, because the next part of the message may follow, whose payload has its own memory."""

_LARGE: Final = 64 * 1024
"""Payloads from this size on are read into their memory, unless all of their bytes have arrived already."""

_MOST_FRAME_BYTES: Final = MAX_FRAME_BYTES + MIB

_HEADER_BYTES: Final = HEADER.size
_header: Final = HEADER.unpack_from
_frame: Final = cast("Callable[[bytearray], Frame]", Frame.FromString)


class _Buffers(threading.local):
    """A read buffer for each thread. Bytes are used before the next read, so all sockets of a thread share it."""

    def __init__(self) -> None:
        self.own = bytearray(_READ_BYTES)


_buffers = _Buffers()


class _Large:
    """A record whose payload is being read into its memory."""

    __slots__ = ("filled", "frame", "memory")

    def __init__(self, frame: Frame, memory: memoryview, begun: memoryview) -> None:
        self.frame = frame
        self.memory = memory
        self.filled = len(begun)
        memory[: self.filled] = begun


class RecordReader:
    """Splits what arrives into records.

    Args:
        most_payload: Largest payload of a record, in bytes.
        traffic: Counts the bytes.
        on_other: Called with each other record: its kind, its frame, its number, and its length of a payload.
        on_read: Called after the records of a read.
        on_garbage: Called with the reason if something arrives that is no record.

    Attributes:
        arrived: The packets of records of the kind `INLINE` are appended here.
        place: Gives the memory for the payload of a frame; see `Place`.
    """

    def __init__(
        self,
        most_payload: int,
        traffic: Traffic,
        on_other: Callable[[int, memoryview, int, int], None],
        on_read: Callable[[], None],
        on_garbage: Callable[[str], None],
    ) -> None:
        self.arrived: deque[Packet] = deque()
        self.place: Place | None = None
        self._most_payload = most_payload
        self._traffic = traffic
        self._on_other = on_other
        self._on_read = on_read
        self._on_garbage = on_garbage
        self._bytes = _buffers.own
        self._buffer = memoryview(self._bytes)
        self._peek = self._buffer[:_PEEK_BYTES]
        self._next = self._buffer
        self._rest = bytearray()
        self._large: _Large | None = None

    def buffer(self) -> memoryview:
        """The memory that the next bytes are read into."""
        large = self._large
        return self._next if large is None else large.memory[large.filled :]

    def read(self, nbytes: int) -> None:
        """Takes the bytes that were read into `buffer()`."""
        self._traffic.received += nbytes
        large = self._large
        if large is None:
            self._next = self._buffer
            try:
                kind, frame_bytes, _, payload_bytes = _header(self._buffer)
                if frame_bytes + _HEADER_BYTES == nbytes and kind == INLINE and not (payload_bytes or self._rest):
                    # One message without a payload, the usual case.
                    self.arrived.append(Packet(_frame(self._bytes[_HEADER_BYTES:nbytes])))
                else:
                    self._split(self._buffer[:nbytes])
            except (InvalidArgumentError, DecodeError) as error:
                self._on_garbage(str(error))
                return
        else:
            large.filled += nbytes
            if large.filled < len(large.memory):
                return
            self._large = None
            self._next = self._peek
            self.arrived.append(Packet(large.frame, (large.memory,)))
        self._on_read()

    def _split(self, data: memoryview) -> None:
        """Handles whole records, and keeps the rest."""
        if self._rest:
            self._rest += data
            with memoryview(self._rest) as whole:
                position = self._records(whole)
            # A long record is collected from many reads; bytes that are already collected stay in place.
            del self._rest[:position]
            return
        # Most reads return whole records, which are parsed without a copy.
        end = self._records(data)
        if end < len(data):
            self._rest += data[end:]

    def _records(self, data: memoryview) -> int:
        """Handles the whole records at the beginning of the bytes; returns where they end."""
        position, available = 0, len(data)
        while available - position >= HEADER.size:
            kind, frame_bytes, number, payload_bytes = HEADER.unpack_from(data, position)
            if frame_bytes > _MOST_FRAME_BYTES or payload_bytes > self._most_payload:
                raise InvalidArgumentError("a record is over the limit")
            begin = position + HEADER.size
            middle = begin + frame_bytes
            if middle > available:
                break
            if kind != INLINE:
                self._on_other(kind, data[begin:middle], number, payload_bytes)
                position = middle
                continue
            end = middle + payload_bytes
            if end <= available:
                frame = Frame.FromString(bytes(data[begin:middle]))
                payload = (memoryview(bytearray(data[middle:end])),) if payload_bytes else ()
                self.arrived.append(Packet(frame, payload))
                position = end
                continue
            if payload_bytes >= _LARGE:
                frame = Frame.FromString(bytes(data[begin:middle]))
                self._large = _Large(frame, self._memory_for(frame, payload_bytes), data[middle:])
                position = available
            break
        return position

    def _memory_for(self, frame: Frame, nbytes: int) -> memoryview:
        memory = None if self.place is None else self.place(frame, nbytes)
        return RECEIVED.take(nbytes).data if memory is None else memory
