"""A connection between two processes of one host: a Unix socket, and shared memory for the tensors.

Each packet is one record on the socket: a fixed header, the frame, and the payload if it is small. A larger payload is
in a segment, whose number is in the header. With the first record of a segment, its descriptor is sent. If no segment
is free, the payload is sent on the socket, which is slower and always possible.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import takewhile
from typing import TYPE_CHECKING, ClassVar, Final

from ps_wire.connections.connection import ConnectionBroken
from ps_wire.connections.frames import Packet
from ps_wire.errors import InvalidArgumentError
from ps_wire.limits import IDLE_SECONDS, MIB
from ps_wire.runtime import forks
from ps_wire.runtime.threads import COPIES
from ps_wire.shared_memory.segments import Segment, SegmentPool, SegmentView
from ps_wire.sockets.connection import RecordConnection
from ps_wire.sockets.reader import HEADER
from ps_wire.sockets.stream_socket import StreamSocket, rest
from ps_wire.sockets.writer import RecordWriter
from ps_wire.v1.frames_pb2 import Frame

if TYPE_CHECKING:
    from ps_wire.connections.connection import Traffic
    from ps_wire.sockets.stream_socket import Piece, Reader

SEGMENT: Final = 1
NEW_SEGMENT: Final = 2
GIVE_BACK: Final = 3
DROPPED: Final = 4
RETIRE: Final = 6

_MANY_FREED: Final = 4
"""Freed segments that are reported without waiting for another message."""

INLINE_BYTES: Final = 32 * 1024
"""Payloads up to this size are sent on the socket: two copies cost less than the message that frees a segment."""

_LONG_COPY: Final = 4 * MIB
"""Payloads from this size on are copied in a thread, so that the event loop can serve other connections."""

_MANY_LENT: Final = 64
"""Most segments with tensors in use. Beyond it, arriving payloads are copied out, so that the sender has some left."""

_MAX_DESCRIPTORS: Final = 16
_ANCILLARY_BYTES: Final = socket.CMSG_SPACE(4 * _MAX_DESCRIPTORS)
_CUT_SHORT: Final = int(socket.MSG_CTRUNC)
"""A plain number: arithmetic with `enum` flags is slow."""

_SECONDS_UNTIL_READ: Final = 0.01
"""Pause when the kernel's limit of descriptors in transit is reached, until the other side has received some."""


class UnixSocket(StreamSocket):
    """Writes and reads pieces of memory and file descriptors. `descriptors` has those received and not yet taken."""

    connection: ClassVar[str] = "the shared-memory connection"

    def __init__(self, sock: socket.socket, reader: Reader, on_broken: Callable[[str], None]) -> None:
        self.descriptors: deque[int] = deque()
        # Each with the unsent piece with whose first byte it is sent.
        self._outgoing: deque[tuple[memoryview, int]] = deque()
        super().__init__(sock, reader, on_broken)

    def write_with(self, pieces: Sequence[Piece], descriptor: int) -> None:
        """Like `StreamSocket.write`, with a descriptor that goes with the first byte. It is closed here in any case."""
        if self.is_closed:
            os.close(descriptor)
            raise ConnectionBroken(f"{self.connection} is closed")
        kept = rest(pieces, 0)
        self._outgoing.append((kept[0], descriptor))
        self._keep(kept)
        self._flush()

    def close(self) -> None:
        super().close()
        while self.descriptors:
            socket.close(self.descriptors.popleft())

    def _transmit_kept(self, pieces: Sequence[Piece]) -> int:
        if self._outgoing:
            piece, descriptor = self._outgoing[0]
            if pieces[0] is piece:
                sent = socket.send_fds(self._sock, [piece], [descriptor])
                # The rest of the piece is sent without it.
                self._outgoing.popleft()
                os.close(descriptor)
                return sent
            pieces = list(takewhile(lambda each: each is not piece, pieces))
        return self._transmit(pieces)

    def _receive(self, buffer: memoryview) -> int:
        nbytes, ancillary, flags, _ = self._sock.recvmsg_into((buffer,), _ANCILLARY_BYTES)
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                self.descriptors.extend(struct.unpack(f"{len(data) // 4}i", data))
        if flags & _CUT_SHORT:
            raise OSError("this process has no file descriptors left")
        return nbytes

    def _survives(self, error: OSError) -> bool:
        if error.errno != errno.ETOOMANYREFS:
            return False
        self._loop.remove_writer(self._sock.fileno())
        self._loop.call_later(_SECONDS_UNTIL_READ, self._try_again)
        return True

    def _try_again(self) -> None:
        if not self.is_closed and self.unsent:
            self._loop.add_writer(self._sock.fileno(), self._flush)

    def _drop_unsent(self) -> None:
        while self._outgoing:
            os.close(self._outgoing.popleft()[1])
        super()._drop_unsent()


class SegmentWriter(RecordWriter):
    """Writes records, descriptors of segments, and reports of freed segments."""

    _socket: UnixSocket
    _freeing = False

    def write_new(self, record: bytes, descriptor: int) -> None:
        """Writes the first record of a segment at once, with its descriptor; raises what `write` raises."""
        self._bunch = 0
        self._collect(record, ())
        self._socket.write_with(self._take_gathered(), descriptor)

    def free(self, kind: int, number: int) -> None:
        """Reports a freed segment. May be called in any thread, also by the garbage collector."""
        self._postponed.append(HEADER.pack(kind, 0, number, 0))
        # Few of them wait for the next message, because waking the event loop and the other process costs more.
        if len(self._postponed) >= _MANY_FREED and not self._freeing:
            self._freeing = True
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._tell_freed)

    def _tell_freed(self) -> None:
        self._freeing = False
        self.flush()


class SharedMemoryConnection(RecordConnection):
    """One end of a shared-memory connection, with at most `max_segment_bytes` of memory for each direction.

    `traffic` counts its bytes, including those in shared memory.
    """

    _stream: UnixSocket
    _records: SegmentWriter

    part_bytes = 1 << 62
    """Payloads are not split, because a payload in a segment does not delay other messages."""

    def __init__(
        self, sock: socket.socket, max_message_bytes: int, max_segment_bytes: int, traffic: Traffic | None = None
    ) -> None:
        super().__init__(max(max_message_bytes, INLINE_BYTES), traffic)
        self._pool = SegmentPool(max_segment_bytes)
        self._view = SegmentView(max_segment_bytes, self._free_later)
        self._tidying: asyncio.TimerHandle | None = None
        stream = UnixSocket(sock, self._reader, self._break)
        self._begin(stream, SegmentWriter(stream, self._traffic))

    async def send(self, packet: Packet) -> None:
        while not self.send_now(packet):
            await self._stream.drained.wait()
            nbytes = packet.nbytes
            if nbytes >= _LONG_COPY:
                # The event loop and smaller messages continue meanwhile.
                await self._send_long(packet, nbytes)
                return

    def _send_payload(self, frame: bytes, payload: Sequence[memoryview], nbytes: int) -> bool:
        if nbytes >= _LONG_COPY:
            return False
        segment = self._segment_for(nbytes) if nbytes > INLINE_BYTES else None
        if segment is None:
            return super()._send_payload(frame, payload, nbytes)
        segment.write(payload)
        self._send_record(frame, nbytes, segment)
        return True

    async def _send_long(self, packet: Packet, nbytes: int) -> None:
        frame, segment = packet.frame.SerializeToString(), self._segment_for(nbytes)
        if segment is None:
            super()._send_payload(frame, packet.payload, nbytes)
        else:
            await COPIES.run(segment.write, packet.payload)
            self._send_record(frame, nbytes, segment)

    def _segment_for(self, nbytes: int) -> Segment | None:
        try:
            return self._pool.take(nbytes)
        except OSError:
            # The system has no descriptors or memory left: use the socket.
            return None

    def _send_record(self, frame: bytes, nbytes: int, segment: Segment) -> None:
        """Sends the record of a packet whose payload is in a segment."""
        self._tell_dropped()
        self._tidy_later()
        self._traffic.sent += nbytes
        if segment.known:
            self._records.write(HEADER.pack(SEGMENT, len(frame), segment.number, nbytes) + frame)
        else:
            record = HEADER.pack(NEW_SEGMENT, len(frame), segment.number, nbytes) + frame
            self._records.write_new(record, segment.hand_over())

    def _let_go(self) -> None:
        super()._let_go()
        self._pool.close()
        self._view.close()
        if self._tidying is not None:
            # It would keep all this until it rings.
            self._tidying.cancel()

    @property
    def shared_bytes(self) -> int:
        return self._pool.nbytes

    # Records

    def _other_record(self, kind: int, frame: memoryview, number: int, nbytes: int) -> None:
        if kind in (SEGMENT, NEW_SEGMENT):
            self._reader.arrived.append(Packet(Frame.FromString(bytes(frame)), self._payload(kind, number, nbytes)))
        elif kind == GIVE_BACK:
            self._pool.give_back(number)
        elif kind == RETIRE:
            self._pool.retire(number)
        elif kind == DROPPED:
            self._view.forget(number)
        else:
            super()._other_record(kind, frame, number, nbytes)

    def _payload(self, kind: int, number: int, nbytes: int) -> tuple[memoryview, ...]:
        """The payload in a segment."""
        if kind == NEW_SEGMENT:
            if not self._stream.descriptors:
                raise InvalidArgumentError("a new segment came without its descriptor")
            self._view.add(number, self._stream.descriptors.popleft())
        self._traffic.received += nbytes
        self._tidy_later()
        crowded = len(self._view.lent) >= _MANY_LENT and nbytes <= MIB
        payload = self._view.bytes_of(number, nbytes)
        return ((payload.copy() if crowded else payload).data,)

    # Freed segments

    def _free_later(self, number: int, retire: bool) -> None:
        # Called when a tensor is freed: in any thread, also by the garbage collector at any point.
        if forks.is_foreign(self._loop):
            return
        self._records.free(RETIRE if retire else GIVE_BACK, number)

    # Unused segments

    def _tidy_later(self) -> None:
        if self._tidying is None and not self._ended:
            self._tidying = self._loop.call_later(IDLE_SECONDS / 2, self._tidy)

    def _tidy(self) -> None:
        """Reports freed segments, and drops those that were not used for a while."""
        self._tidying = None
        if self.is_over:
            return
        self._pool.trim(IDLE_SECONDS)
        self._tell_dropped()
        self._records.flush()
        if self._pool.nbytes or self._view.mapped:
            self._tidy_later()

    def _tell_dropped(self) -> None:
        for number in self._pool.take_dropped():
            self._records.add(HEADER.pack(DROPPED, 0, number, 0))
