"""The socket under a lane: bytes and descriptors in order, never blocking, straight from the event loop's readiness."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from ps_wire.connection import ConnectionBroken

Piece = bytes | bytearray | memoryview

_READ_BYTES: Final = 256 * 1024
_MAX_DESCRIPTORS: Final = 16
_PIECES_PER_CALL: Final = 64


class _Buffers(threading.local):
    """What is read is used up before the next read: one buffer serves all the sockets of an event loop's thread."""

    def __init__(self) -> None:
        self.own = bytearray(_READ_BYTES)


_buffers = _Buffers()


class LaneSocket:
    """Writes pieces of memory and file descriptors, and reads them.

    asyncio's own streams would copy once more, cost a task switch per message, and cannot carry descriptors.

    Args:
        sock: A connected Unix socket of type stream.
        on_bytes: Called with what was read; the memory is used again afterwards.
        on_broken: Called once when nothing more will come.

    Attributes:
        descriptors: Those that have arrived and were not taken yet, in order.
        drained: Set while nothing waits to be written.
    """

    def __init__(
        self, sock: socket.socket, on_bytes: Callable[[memoryview], None], on_broken: Callable[[str], None]
    ) -> None:
        sock.setblocking(False)
        self.descriptors: deque[int] = deque()
        self.drained = asyncio.Event()
        self.drained.set()
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._on_bytes = on_bytes
        self._on_broken = on_broken
        self._buffer = _buffers.own
        self._unsent: deque[tuple[memoryview, int | None]] = deque()
        self._closed = False
        self._unwritable = False
        self._loop.add_reader(sock.fileno(), self._read)

    def write(self, pieces: Sequence[Piece], descriptor: int | None = None) -> None:
        """Hands pieces to the kernel; keeps what it does not take at once, which must not change until it did.

        Args:
            pieces: What to write.
            descriptor: Travels with the first byte.

        Raises:
            ConnectionBroken: Nothing can be written any more.
        """
        if self._closed or self._unwritable:
            raise ConnectionBroken("the lane is closed")
        sent = 0
        if not self._unsent and descriptor is None:
            try:
                sent = self._sock.sendmsg(pieces)
            except BlockingIOError:
                sent = 0
            except OSError as error:
                raise self._fail(error) from error
            if sent == sum(map(len, pieces)):
                return
        self._keep(pieces, sent, descriptor)
        if self._unsent and self.drained.is_set():
            self.drained.clear()
            self._loop.add_writer(self._sock.fileno(), self._flush)
            if descriptor is not None:
                self._flush()

    @property
    def is_closed(self) -> bool:
        """Whether nothing can be written any more."""
        return self._closed or self._unwritable

    def close(self) -> None:
        """Closes the socket; what was not written is lost. Calling it again does nothing."""
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._sock.fileno())
        self._loop.remove_writer(self._sock.fileno())
        self._sock.close()
        self._unsent.clear()
        self.drained.set()
        while self.descriptors:
            socket.close(self.descriptors.popleft())

    def _keep(self, pieces: Sequence[Piece], sent: int, descriptor: int | None) -> None:
        for piece in pieces:
            if sent >= len(piece):
                sent -= len(piece)
                continue
            self._unsent.append((memoryview(piece)[sent:], descriptor))
            sent, descriptor = 0, None

    def _flush(self) -> None:
        try:
            while self._unsent:
                if not self._send_some():
                    return
        except BlockingIOError:
            return
        except OSError as error:
            self._fail(error)
            return
        self._loop.remove_writer(self._sock.fileno())
        self.drained.set()

    def _send_some(self) -> bool:
        """Writes once; says whether the kernel took all that was offered."""
        first, descriptor = self._unsent[0]
        if descriptor is not None:
            offered = [first]
            sent = socket.send_fds(self._sock, offered, [descriptor])
        else:
            offered = []
            for piece, other in self._unsent:
                if other is not None or len(offered) == _PIECES_PER_CALL:
                    break
                offered.append(piece)
            sent = self._sock.sendmsg(offered)
        for _ in offered:
            self._unsent.popleft()
        left = []
        for piece in offered:
            if sent < len(piece):
                left.append((piece[sent:], None))
            sent = max(0, sent - len(piece))
        self._unsent.extendleft(reversed(left))
        return not left

    def _read(self) -> None:
        try:
            nbytes, ancillary, _, _ = self._sock.recvmsg_into([self._buffer], socket.CMSG_SPACE(4 * _MAX_DESCRIPTORS))
        except BlockingIOError:
            return
        except OSError as error:
            self._break(error)
            return
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                self.descriptors.extend(struct.unpack(f"{len(data) // 4}i", data))
        if nbytes:
            self._on_bytes(memoryview(self._buffer)[:nbytes])
        else:
            self._break("the other side is gone")

    def _fail(self, error: OSError) -> ConnectionBroken:
        """Nothing can be written any more."""
        if not isinstance(error, (BrokenPipeError, ConnectionResetError)):
            return self._break(error)
        # The other side is gone. What it said before has not been read yet: the reader comes to its end by itself.
        self._unwritable = True
        self._loop.remove_writer(self._sock.fileno())
        self._unsent.clear()
        self.drained.set()
        return ConnectionBroken(f"the lane broke: {error}")

    def _break(self, reason: object) -> ConnectionBroken:
        if not self._closed:
            self.close()
            self._on_broken(f"the lane broke: {reason}")
        return ConnectionBroken(f"the lane broke: {reason}")
