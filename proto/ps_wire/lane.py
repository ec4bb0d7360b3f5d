"""Lane: a connection between two processes of one host: a Unix socket, and shared memory for the tensors.

Each packet is one record on the socket: a fixed header, the frame, and the payload if it is small. A larger payload
lies in a segment whose number stands in the header; the first time, its descriptor travels with the record. When no
segment is free the payload takes the socket too: slower, and always possible.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from google.protobuf.message import DecodeError

from ps_wire.connection import ConnectionBroken
from ps_wire.errors import InvalidArgumentError
from ps_wire.frames import Packet
from ps_wire.lane_socket import LaneSocket
from ps_wire.limits import MAX_FRAME_BYTES, MIB
from ps_wire.segments import Segment, SegmentPool, SegmentView
from ps_wire.traffic import Traffic
from ps_wire.v1.frames_pb2 import Frame

INLINE_BYTES: Final = 32 * 1024
"""Payloads up to this size take the socket: two copies cost less than the news that a segment is free."""

_MANY_FREED: Final = 4
"""Segments that may come free before the other side is told without a message of its own to go with."""

_LONG_COPY: Final = 4 * MIB
"""Payloads from this size on are copied in a thread: the event loop has others to serve."""

_BUNCH: Final = 16
"""Records of one turn of the event loop that are written together."""

_SOON: Final = 0.002
"""Seconds after which records go out that nobody waits for, when there was no other to go with."""

_HEADER: Final = struct.Struct("<BIIQ")
"""Kind of the record, length of the frame, number of a segment, length of the payload."""

_INLINE: Final = 0
_SEGMENT: Final = 1
_NEW_SEGMENT: Final = 2
_GIVE_BACK: Final = 3
_DROPPED: Final = 4
_END: Final = 5


class LaneConnection:
    """One end of a lane.

    Args:
        sock: A connected Unix socket of type stream.
        max_message_bytes: Largest payload that is accepted.
        max_segment_bytes: How much shared memory each direction may use.
        traffic: Where its bytes are counted, those in shared memory too.
    """

    part_bytes: Final = 1 << 62
    """Payloads are not cut: what lies in a segment stands in nobody's way."""

    def __init__(
        self, sock: socket.socket, max_message_bytes: int, max_segment_bytes: int, traffic: Traffic | None = None
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._traffic = traffic or Traffic()
        self._max_message_bytes = max_message_bytes
        self._pool = SegmentPool(max_segment_bytes)
        self._view = SegmentView(max_segment_bytes, self._free_later)
        self._rest = bytearray()
        self._arrived: deque[Packet] = deque()
        self._receiver: asyncio.Future[None] | None = None
        self._handle: Callable[[Packet], bool] | None = None
        self._freed: deque[int] = deque()
        self._freeing = False
        self._postponed = b""
        self._flushing = False
        self._is_busy = False
        self._bunch = 0
        self._ended = False
        self._broken = ""
        self._socket = LaneSocket(sock, self._take_in, self._break)

    async def send(self, packet: Packet) -> None:
        await self._socket.drained.wait()
        segment = self._segment_for(packet.nbytes)
        if segment is not None and packet.nbytes >= _LONG_COPY:
            # The event loop, and smaller messages, go on meanwhile.
            await asyncio.to_thread(segment.write, packet.payload)
            self._send_record(packet, segment)
        else:
            self._send(packet, segment)

    def send_now(self, packet: Packet, later: bool = False) -> bool:
        # While the other side is slow, messages wait in the outbox, where they can still be counted.
        nbytes = packet.nbytes
        if nbytes >= _LONG_COPY or not self._socket.drained.is_set():
            return False
        if later and not packet.payload:
            frame = packet.frame.SerializeToString()
            self._postpone(_HEADER.pack(_INLINE, len(frame), 0, 0) + frame)
        else:
            self._send(packet, self._segment_for(nbytes))
        return True

    def _segment_for(self, nbytes: int) -> Segment | None:
        if nbytes <= INLINE_BYTES:
            return None
        try:
            return self._pool.take(nbytes)
        except OSError:
            # Out of descriptors or of memory: the socket still works.
            return None

    def _send(self, packet: Packet, segment: Segment | None) -> None:
        if segment is None:
            frame = packet.frame.SerializeToString()
            self._write(_HEADER.pack(_INLINE, len(frame), 0, packet.nbytes) + frame, packet.payload)
        else:
            segment.write(packet.payload)
            self._send_record(packet, segment)

    def _send_record(self, packet: Packet, segment: Segment) -> None:
        """Says that a payload lies in a segment."""
        for number in self._pool.take_dropped():
            self._postponed += _HEADER.pack(_DROPPED, 0, number, 0)
        frame = packet.frame.SerializeToString()
        kind = _SEGMENT if segment.known else _NEW_SEGMENT
        record = _HEADER.pack(kind, len(frame), segment.number, packet.nbytes) + frame
        self._traffic.sent += packet.nbytes
        self._write(record, (), None if segment.known else segment.descriptor)
        segment.known = True

    def _write(self, record: bytes, payload: Sequence[memoryview] = (), descriptor: int | None = None) -> None:
        """Writes a record.

        The first of a turn of the event loop goes out at once, so that the other side can begin. What follows in the
        same turn goes out in bunches: many calls at once, or their answers, do not cost a system call each.
        """
        if not self._is_busy:
            self._is_busy = True
            self._loop.call_soon(self._end_turn)
        elif not payload and descriptor is None and self._bunch < _BUNCH and not self._socket.is_closed:
            self._postponed += record
            self._bunch += 1
            return
        self._write_out(record, payload, descriptor)

    def _write_out(self, record: bytes, payload: Sequence[memoryview] = (), descriptor: int | None = None) -> None:
        """Writes a record now, behind all that waited for it."""
        self._bunch = 0
        record = self._notes() + record
        self._traffic.sent += len(record) + sum(map(len, payload)) if payload else len(record)
        self._socket.write((record, *payload), descriptor)

    def _end_turn(self) -> None:
        self._is_busy = False
        if self._bunch:
            self._flush()

    def _postpone(self, record: bytes) -> None:
        """Sends a record with the next one, or soon.

        Nobody waits for such a record, and every write wakes the other process, which can cost more than a small call.
        """
        self._postponed += record
        if not self._flushing:
            self._flushing = True
            self._loop.call_later(_SOON, self._flush)

    def _flush(self) -> None:
        self._flushing = False
        if not self._ended and not self._broken:
            with suppress(ConnectionBroken):
                self._write_out(b"")

    async def receive(self) -> Packet | None:
        while not self._arrived:
            if self._ended:
                return None
            if self._broken:
                raise ConnectionBroken(self._broken)
            self._receiver = self._loop.create_future()
            await self._receiver
        return self._arrived.popleft()

    async def deliver(self, handle: Callable[[Packet], bool]) -> None:
        """Calls `handle` with every packet as it arrives; see `Delivering`."""
        while self._arrived:
            if handle(self._arrived.popleft()):
                return
        if self._ended:
            return
        if self._broken:
            raise ConnectionBroken(self._broken)
        self._receiver = self._loop.create_future()
        self._handle = handle
        try:
            await self._receiver
        finally:
            self._handle = None

    async def close(self) -> None:
        if not self._broken and not self._ended:
            with suppress(ConnectionBroken):
                self._write_out(_HEADER.pack(_END, 0, 0, 0))
        self._ended = True
        self._socket.close()
        self._pool.close()
        self._wake()

    def cut(self) -> None:
        """Breaks the lane without a word, as the end of a process does."""
        self._socket.close()
        self._pool.close()
        self._break("the lane was cut")

    @property
    def shared_bytes(self) -> int:
        """How much shared memory this end writes to."""
        return self._pool.nbytes

    # Records

    def _take_in(self, data: memoryview) -> None:
        self._traffic.received += len(data)
        # Most reads bring whole records: those are parsed where they lie.
        try:
            if not self._rest:
                self._rest += data[self._records(data) :]
            else:
                self._rest += data
                with memoryview(self._rest) as whole:
                    position = self._records(whole)
                # A long record is gathered from many reads: what is here already stays where it is.
                del self._rest[:position]
        except (InvalidArgumentError, DecodeError) as error:
            self._break(f"the other side does not speak the lane's protocol: {error}")
            self._socket.close()
            return
        if self._handle is not None:
            self._hand_over(self._handle)
        elif self._arrived:
            self._wake()

    def _hand_over(self, handle: Callable[[Packet], bool]) -> None:
        try:
            while self._arrived and self._handle is not None:
                if handle(self._arrived.popleft()):
                    self._handle = None
                    self._wake()
        except Exception as error:
            self._handle = None
            if self._receiver is not None and not self._receiver.done():
                self._receiver.set_exception(error)

    def _records(self, data: memoryview) -> int:
        """Handles the whole records at the beginning of some bytes; returns where they end."""
        position = 0
        while len(data) - position >= _HEADER.size:
            kind, frame_bytes, number, payload_bytes = _HEADER.unpack_from(data, position)
            if frame_bytes > MAX_FRAME_BYTES + MIB or payload_bytes > max(self._max_message_bytes, INLINE_BYTES):
                raise InvalidArgumentError("a record is over the limit")
            middle = position + _HEADER.size + frame_bytes
            end = middle + payload_bytes if kind == _INLINE else middle
            if end > len(data):
                break
            if kind <= _NEW_SEGMENT:
                frame = Frame.FromString(bytes(data[middle - frame_bytes : middle]))
                self._arrived.append(Packet(frame, self._payload(kind, number, payload_bytes, data[middle:end])))
            else:
                self._notice(kind, number)
            position = end
        return position

    def _payload(self, kind: int, number: int, nbytes: int, inline: memoryview) -> tuple[memoryview, ...]:
        if kind == _INLINE:
            return (memoryview(bytearray(inline)),) if nbytes else ()
        if kind == _NEW_SEGMENT:
            if not self._socket.descriptors:
                raise InvalidArgumentError("a new segment came without its descriptor")
            self._view.add(number, self._socket.descriptors.popleft())
        self._traffic.received += nbytes
        return (self._view.bytes_of(number, nbytes).data,)

    def _notice(self, kind: int, number: int) -> None:
        if kind == _GIVE_BACK:
            self._pool.give_back(number)
        elif kind == _DROPPED:
            self._view.forget(number)
        elif kind == _END:
            self._ended = True
            self._wake()
        else:
            raise InvalidArgumentError(f"a record of kind {kind}")

    # Segments that came free

    def _free_later(self, number: int) -> None:
        # Called when a tensor dies: in any thread, also by the garbage collector in the midst of anything.
        self._freed.append(number)
        # Few of them wait for the next message: to wake the event loop, and the other process, costs more.
        if len(self._freed) >= _MANY_FREED and not self._freeing:
            self._freeing = True
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._give_back)

    def _give_back(self) -> None:
        self._freeing = False
        self._flush()

    def _notes(self) -> bytes:
        """What is to be told with the next record."""
        notes, self._postponed = self._postponed, b""
        while self._freed:
            notes += _HEADER.pack(_GIVE_BACK, 0, self._freed.popleft(), 0)
        return notes

    # State

    def _wake(self) -> None:
        if self._receiver is not None and not self._receiver.done():
            if self._broken and self._handle is not None:
                self._receiver.set_exception(ConnectionBroken(self._broken))
            else:
                self._receiver.set_result(None)

    def _break(self, reason: str) -> None:
        self._broken = self._broken or reason
        self._wake()
