"""A connection between two processes of one host: a Unix socket, and shared memory for the tensors.

Each packet is one record on the socket: a fixed header, the frame, and the payload if it is small. A larger payload is
in a segment, whose number is in the header. With the first record of a segment, its descriptor is sent. If no segment
is free, the payload is sent on the socket, which is slower and always possible.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Final

from google.protobuf.message import DecodeError

from ps_wire.connections.connection import ConnectionBroken, Handle
from ps_wire.connections.frames import Packet
from ps_wire.connections.traffic import Traffic
from ps_wire.errors import InvalidArgumentError
from ps_wire.limits import IDLE_SECONDS, MAX_FRAME_BYTES, MIB
from ps_wire.runtime import forks
from ps_wire.runtime.threads import COPIES
from ps_wire.shared_memory.delivery import Delivery
from ps_wire.shared_memory.segments import Segment, SegmentPool, SegmentView
from ps_wire.shared_memory.unix_socket import UnixSocket
from ps_wire.shared_memory.writer import (
    DROPPED,
    END,
    GIVE_BACK,
    HEADER,
    INLINE,
    NEW_SEGMENT,
    RETIRE,
    SEGMENT,
    RecordWriter,
)
from ps_wire.v1.frames_pb2 import Frame

INLINE_BYTES: Final = 32 * 1024
"""Payloads up to this size are sent on the socket: two copies cost less than the message that frees a segment."""

_JOINED_BYTES: Final = 4096
"""Payloads up to this size are copied into their record, which costs less than writing a second piece of memory."""

_LONG_COPY: Final = 4 * MIB
"""Payloads from this size on are copied in a thread, so that the event loop can serve other connections."""

_MOST_FRAME_BYTES: Final = MAX_FRAME_BYTES + MIB

_MANY_LENT: Final = 64
"""Most segments with tensors in use. Beyond it, arriving payloads are copied out, so that the sender has some left."""


class SharedMemoryConnection:
    """One end of a shared-memory connection.

    Args:
        sock: A connected Unix socket of type stream.
        max_message_bytes: Largest payload that is accepted.
        max_segment_bytes: Most shared memory of each direction, in bytes.
        traffic: Counts its bytes, including those in shared memory.
    """

    part_bytes: Final = 1 << 62
    """Payloads are not split, because a payload in a segment does not delay other messages."""

    def __init__(
        self, sock: socket.socket, max_message_bytes: int, max_segment_bytes: int, traffic: Traffic | None = None
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._traffic = traffic or Traffic()
        self._most_bytes = max(max_message_bytes, INLINE_BYTES)
        self._pool = SegmentPool(max_segment_bytes)
        self._view = SegmentView(max_segment_bytes, self._free_later)
        self._rest = bytearray()
        self._tidying: asyncio.TimerHandle | None = None
        self._socket = UnixSocket(sock, self._take_in, self._break)
        self._delivery = Delivery(self._socket)
        self._writer = RecordWriter(self._socket, self._traffic)

    async def send(self, packet: Packet) -> None:
        while not self.send_now(packet):
            await self._socket.drained.wait()
            nbytes = packet.nbytes
            if nbytes >= _LONG_COPY:
                # The event loop and smaller messages continue meanwhile.
                await self._send_long(packet, nbytes)
                return

    def send_now(self, packet: Packet, later: bool = False) -> bool:
        # While the other side is slow, messages wait in the outbox, where they are counted.
        if self._socket.unsent:
            return False
        frame, payload = packet
        if not payload:
            header = frame.SerializeToString()
            record = HEADER.pack(INLINE, len(header), 0, 0) + header
            if later:
                self._writer.postpone(record)
            else:
                self._writer.write(record)
            return True
        nbytes = sum(map(len, payload))
        if nbytes >= _LONG_COPY:
            return False
        segment = self._segment_for(nbytes) if nbytes > INLINE_BYTES else None
        if segment is not None:
            segment.write(payload)
            self._send_record(packet, nbytes, segment)
            return True
        header = frame.SerializeToString()
        record = HEADER.pack(INLINE, len(header), 0, nbytes) + header
        if nbytes > _JOINED_BYTES:
            self._writer.write(record, payload)
        else:
            self._writer.write(b"".join((record, *payload)))
        return True

    async def _send_long(self, packet: Packet, nbytes: int) -> None:
        segment = self._segment_for(nbytes)
        if segment is not None:
            await COPIES.run(segment.write, packet.payload)
            self._send_record(packet, nbytes, segment)
        else:
            header = packet.frame.SerializeToString()
            self._writer.write(HEADER.pack(INLINE, len(header), 0, nbytes) + header, packet.payload)

    def _segment_for(self, nbytes: int) -> Segment | None:
        try:
            return self._pool.take(nbytes)
        except OSError:
            # The system has no descriptors or memory left: use the socket.
            return None

    def _send_record(self, packet: Packet, nbytes: int, segment: Segment) -> None:
        """Sends the record of a packet whose payload is in a segment."""
        self._tell_dropped()
        self._tidy_later()
        frame = packet.frame.SerializeToString()
        kind = SEGMENT if segment.known else NEW_SEGMENT
        record = HEADER.pack(kind, len(frame), segment.number, nbytes) + frame
        self._traffic.sent += nbytes
        self._writer.write(record, (), None if segment.known else segment.hand_over())

    def gather(self) -> None:
        """Keeps the records that are written from now on; see `Gathering`."""
        self._writer.gather()

    def release(self) -> None:
        """Writes the kept records; see `Gathering`."""
        self._writer.release()

    async def receive(self) -> Packet | None:
        return await self._delivery.receive()

    async def deliver(self, handle: Handle) -> None:
        """Calls `handle` with every packet as it arrives; see `Delivering`."""
        await self._delivery.deliver(handle)

    async def close(self) -> None:
        if not self._is_over:
            with suppress(ConnectionBroken):
                self._writer.write(HEADER.pack(END, 0, 0, 0), at_once=True)
        self._let_go()
        self._delivery.stop()

    def cut(self, reason: str = "the shared-memory connection was cut") -> None:
        """Breaks the connection, as the end of a process does."""
        self._let_go()
        self._break(reason)

    def _let_go(self) -> None:
        self._writer.end()
        self._socket.close()
        self._pool.close()
        self._view.close()
        if self._tidying is not None:
            # It would keep all this until it rings.
            self._tidying.cancel()

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory that this end writes to."""
        return self._pool.nbytes

    # Records

    def _take_in(self, data: memoryview) -> None:
        self._traffic.received += len(data)
        # Most reads return whole records, which are parsed without a copy.
        try:
            if not self._rest:
                end = self._records(data)
                if end < len(data):
                    self._rest += data[end:]
            else:
                self._rest += data
                with memoryview(self._rest) as whole:
                    position = self._records(whole)
                # A long record is collected from many reads; bytes that are already collected stay in place.
                del self._rest[:position]
        except (InvalidArgumentError, DecodeError) as error:
            self._break(f"the other side does not speak the shared-memory connection's protocol: {error}")
            self._socket.close()
            return
        # The answers to the requests that have arrived are written together.
        self._writer.begin_turn()
        try:
            self._delivery.hand_over()
        finally:
            self._writer.end_turn()

    def _records(self, data: memoryview) -> int:
        """Handles the whole records at the beginning of the bytes; returns where they end."""
        position, available = 0, len(data)
        while available - position >= HEADER.size:
            kind, frame_bytes, number, payload_bytes = HEADER.unpack_from(data, position)
            if frame_bytes > _MOST_FRAME_BYTES or payload_bytes > self._most_bytes:
                raise InvalidArgumentError("a record is over the limit")
            middle = position + HEADER.size + frame_bytes
            end = middle + payload_bytes if kind == INLINE else middle
            if end > available:
                break
            if kind <= NEW_SEGMENT:
                frame = Frame.FromString(bytes(data[middle - frame_bytes : middle]))
                payload: tuple[memoryview, ...] = ()
                if kind != INLINE:
                    payload = self._payload(kind, number, payload_bytes)
                elif payload_bytes:
                    payload = (memoryview(bytearray(data[middle:end])),)
                self._delivery.arrived.append(Packet(frame, payload))
            else:
                self._notice(kind, number)
            position = end
        return position

    def _payload(self, kind: int, number: int, nbytes: int) -> tuple[memoryview, ...]:
        """The payload in a segment."""
        if kind == NEW_SEGMENT:
            if not self._socket.descriptors:
                raise InvalidArgumentError("a new segment came without its descriptor")
            self._view.add(number, self._socket.descriptors.popleft())
        self._traffic.received += nbytes
        self._tidy_later()
        crowded = self._view.lent >= _MANY_LENT and nbytes <= MIB
        payload = self._view.bytes_of(number, nbytes)
        return ((payload.copy() if crowded else payload).data,)

    def _notice(self, kind: int, number: int) -> None:
        if kind == GIVE_BACK:
            self._pool.give_back(number)
        elif kind == RETIRE:
            self._pool.retire(number)
        elif kind == DROPPED:
            self._view.forget(number)
        elif kind == END:
            self._writer.end()
            self._delivery.end()
        else:
            raise InvalidArgumentError(f"a record of kind {kind}")

    # Freed segments

    def _free_later(self, number: int, retire: bool) -> None:
        # Called when a tensor is freed: in any thread, also by the garbage collector at any point.
        if forks.is_foreign(self._loop):
            return
        self._writer.free(RETIRE if retire else GIVE_BACK, number)

    # Unused segments

    def _tidy_later(self) -> None:
        if self._tidying is None and not self._delivery.ended:
            self._tidying = self._loop.call_later(IDLE_SECONDS / 2, self._tidy)

    def _tidy(self) -> None:
        """Reports freed segments, and drops those that were not used for a while."""
        self._tidying = None
        if self._is_over:
            return
        self._pool.trim(IDLE_SECONDS)
        self._tell_dropped()
        self._writer.flush()
        if self._pool.nbytes or self._view.mapped:
            self._tidy_later()

    def _tell_dropped(self) -> None:
        for number in self._pool.take_dropped():
            self._writer.add(HEADER.pack(DROPPED, 0, number, 0))

    # State

    @property
    def _is_over(self) -> bool:
        return self._delivery.ended or bool(self._delivery.broken)

    def _break(self, reason: str) -> None:
        self._writer.end()
        self._delivery.break_off(reason)
