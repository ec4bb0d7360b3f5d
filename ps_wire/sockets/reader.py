"""The form of a record on a socket, and a reader that splits what arrives into records.

A record is a fixed header, a frame, and the payload if it is sent on the socket. Large payloads are read straight into
their memory.
"""

from __future__ import annotations

import struct
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

from google.protobuf.message import DecodeError

from ps_wire.connections.buffers import RECEIVED
from ps_wire.connections.frames import Packet
from ps_wire.errors import InvalidArgumentError
from ps_wire.limits import MAX_FRAME_BYTES, MIB
from ps_wire.runtime.noop import noop
from ps_wire.v1.frames_pb2 import Frame

if TYPE_CHECKING:
    from ps_wire.connections.connection import Place, Traffic

HEADER: Final = struct.Struct("<BIIQ")
"""Kind of the record, length of the frame, number of a segment of shared memory, length of the payload."""

INLINE: Final = 0
"""Kind of a record whose payload follows its frame. Other kinds have no payload on the socket."""

END: Final = 5
"""Kind of the last record: the side that sends it has closed the connection."""

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
    """Splits what is read into `buffer` into records.

    Packets of records of the kind `INLINE` are appended to `arrived`; `place` gives the memory for their payloads (see
    `Place`). `on_other` is called with the kind, frame, number and payload length of each other record, `on_garbage`
    with the reason if something arrives that is no record, and `on_read` after the records of a read.
    """

    def __init__(
        self,
        most_payload: int,
        traffic: Traffic,
        on_other: Callable[[int, memoryview, int, int], None],
        on_garbage: Callable[[str], None],
    ) -> None:
        self.arrived: deque[Packet] = deque()
        self.place: Place | None = None
        self.on_read: Callable[[], None] = noop
        self._most_payload = most_payload
        self._traffic = traffic
        self._on_other = on_other
        self._on_garbage = on_garbage
        self._bytes = _buffers.own
        self._whole = memoryview(self._bytes)
        self._peek = self._whole[:_PEEK_BYTES]
        self.buffer = self._whole
        self._rest = bytearray()
        self._large: _Large | None = None

    def read(self, nbytes: int) -> None:
        """Takes the bytes that were read into `buffer`."""
        self._traffic.received += nbytes
        large = self._large
        if large is None:
            self.buffer = self._whole
            try:
                kind, frame_bytes, _, payload_bytes = _header(self._whole)
                middle = _HEADER_BYTES + frame_bytes
                is_whole = middle + payload_bytes == nbytes and kind == INLINE and not self._rest
                if is_whole and payload_bytes <= self._most_payload:
                    # One message, the usual case.
                    payload = (memoryview(self._bytes[middle:nbytes]),) if payload_bytes else ()
                    self.arrived.append(Packet(_frame(self._bytes[_HEADER_BYTES:middle]), payload))
                elif self._rest:
                    # A long record is collected from many reads; bytes that are already collected stay in place.
                    self._rest += self._whole[:nbytes]
                    with memoryview(self._rest) as collected:
                        end = self._records(collected)
                    del self._rest[:end]
                else:
                    # Most reads return whole records, which are parsed without a copy.
                    end = self._records(self._whole[:nbytes])
                    if end < nbytes:
                        self._rest += self._whole[end:nbytes]
            except (InvalidArgumentError, DecodeError) as error:
                self._on_garbage(str(error))
                return
        else:
            large.filled += nbytes
            if large.filled < len(large.memory):
                self.buffer = large.memory[large.filled :]
                return
            self._large = None
            self.buffer = self._peek
            self.arrived.append(Packet(large.frame, (large.memory,)))
        self.on_read()

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
                memory = None if self.place is None else self.place(frame, payload_bytes)
                if memory is None:
                    memory = RECEIVED.take(payload_bytes).data
                large = self._large = _Large(frame, memory, data[middle:])
                self.buffer = large.memory[large.filled :]
                position = available
            break
        return position
