"""The Unix socket of a shared-memory connection: sends bytes and descriptors, in order, without blocking."""

from __future__ import annotations

import asyncio
import errno
import os
import select
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from ps_wire.connections.connection import ConnectionBroken
from ps_wire.runtime import forks

Piece = bytes | bytearray | memoryview

_READ_BYTES: Final = 256 * 1024
_MAX_DESCRIPTORS: Final = 16
_ANCILLARY_BYTES: Final = socket.CMSG_SPACE(4 * _MAX_DESCRIPTORS)
_CUT_SHORT: Final = int(socket.MSG_CTRUNC)
"""A plain number: arithmetic with `enum` flags is slow."""

_SECONDS_UNTIL_READ: Final = 0.01
"""Pause when the kernel's limit of descriptors in transit is reached, until the other side has received some."""

_PIECES_PER_CALL: Final = 512
"""Most pieces per call. The kernel refuses more than 1,024 (IOV_MAX)."""

_SMALL_PIECE: Final = 4096
"""Pieces up to this size are joined if there are many: copying them costs less than passing each to the kernel."""

_JOINED_BYTES: Final = 64 * 1024
"""Most bytes that are joined at a time."""


_LOOK_SECONDS: Final = 1.0
"""Interval of checks for the end of the other side while nothing is read, in seconds."""


class _Buffers(threading.local):
    """A read buffer for each thread. Bytes are used before the next read, so all sockets of a thread share it."""

    def __init__(self) -> None:
        self.own = bytearray(_READ_BYTES)


_buffers = _Buffers()


class UnixSocket:
    """Writes pieces of memory and file descriptors, and reads them.

    The streams of asyncio would copy once more, cost a task switch per message, and cannot send descriptors.

    Args:
        sock: A connected Unix socket of type stream.
        on_bytes: Called with the bytes that were read; the memory is reused afterwards.
        on_broken: Called once with the reason when nothing more can be read.

    Attributes:
        descriptors: Received descriptors that were not taken yet, in order.
        unsent: Pieces that wait to be written, each with the descriptor to send with its first byte.
        drained: Set while no piece waits to be written.
    """

    def __init__(
        self, sock: socket.socket, on_bytes: Callable[[memoryview], None], on_broken: Callable[[str], None]
    ) -> None:
        sock.setblocking(False)
        self.descriptors: deque[int] = deque()
        self.unsent: deque[tuple[memoryview, int | None]] = deque()
        self.drained = asyncio.Event()
        self.drained.set()
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._on_bytes = on_bytes
        self._on_broken = on_broken
        self._buffer = memoryview(_buffers.own)
        self._closed = False
        self._unwritable = False
        self._looking: asyncio.TimerHandle | None = None
        self._loop.add_reader(sock.fileno(), self._read)
        forks.belongs_here(self._loop)
        forks.put_away_in_children(self)

    def write(self, pieces: Sequence[Piece], descriptor: int | None = None) -> None:
        """Writes pieces. Those that the kernel does not take at once are kept; they must not change until written.

        Args:
            pieces: The bytes to write.
            descriptor: Sent with the first byte. It is closed here once it is sent, or cannot be sent any more.

        Raises:
            ConnectionBroken: Nothing can be written any more.
        """
        if self._closed or self._unwritable:
            if descriptor is not None:
                os.close(descriptor)
            raise ConnectionBroken("the shared-memory connection is closed")
        if len(pieces) > _PIECES_PER_CALL:
            pieces = joined(pieces)
        sent = 0
        if not self.unsent and descriptor is None:
            try:
                # A single piece is the usual case, and `send` is cheaper than `sendmsg`.
                sent = self._sock.send(pieces[0]) if len(pieces) == 1 else self._sock.sendmsg(pieces[:_PIECES_PER_CALL])
            except BlockingIOError:
                sent = 0
            except OSError as error:
                raise self._fail(error) from error
            if sent == sum(map(len, pieces)):
                return
        self._keep(pieces, sent, descriptor)
        if self.unsent and self.drained.is_set():
            self.drained.clear()
            self._loop.add_writer(self._sock.fileno(), self._flush)
            if descriptor is not None:
                self._flush()

    def pause(self) -> None:
        """Stops reading, so that the other side has to wait. Its end is still noticed."""
        if not self._closed:
            self._loop.remove_reader(self._sock.fileno())
            self._look_later()

    def resume(self) -> None:
        """Continues to read."""
        if not self._closed:
            self._look_no_more()
            self._loop.add_reader(self._sock.fileno(), self._read)

    @property
    def is_closed(self) -> bool:
        """Whether nothing can be written any more."""
        return self._closed or self._unwritable

    def close(self) -> None:
        """Closes the socket; unwritten pieces are lost. Calling it again does nothing."""
        if self._closed:
            return
        self._closed = True
        self._look_no_more()
        self._loop.remove_reader(self._sock.fileno())
        self._loop.remove_writer(self._sock.fileno())
        self._sock.close()
        self._drop_unsent()
        self.drained.set()
        while self.descriptors:
            socket.close(self.descriptors.popleft())

    def forked(self) -> None:
        """In a forked child: closes the child's copy, so that the other side notices the end of the parent."""
        if not self._closed:
            self._closed = True
            # Not through the loop, whose selector is shared with the parent.
            os.close(self._sock.detach())
            self._drop_unsent()

    def _look_later(self) -> None:
        if self._looking is None:
            self._looking = self._loop.call_later(_LOOK_SECONDS, self._look)

    def _look_no_more(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None

    def _look(self) -> None:
        """If the other side has ended, reads the remaining bytes, and writes nothing more."""
        self._looking = None
        poll = select.poll()
        # No events are requested: a hang-up is reported in any case.
        poll.register(self._sock.fileno(), 0)
        if poll.poll(0):
            self._loop.add_reader(self._sock.fileno(), self._read)
        else:
            self._look_later()

    def _keep(self, pieces: Sequence[Piece], sent: int, descriptor: int | None) -> None:
        for piece in pieces:
            if sent >= len(piece):
                sent -= len(piece)
                continue
            self.unsent.append((memoryview(piece)[sent:], descriptor))
            sent, descriptor = 0, None

    def _flush(self) -> None:
        try:
            while self.unsent:
                if not self._send_some():
                    return
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno == errno.ETOOMANYREFS:
                self._loop.remove_writer(self._sock.fileno())
                self._loop.call_later(_SECONDS_UNTIL_READ, self._try_again)
            else:
                self._fail(error)
            return
        self._loop.remove_writer(self._sock.fileno())
        self.drained.set()

    def _try_again(self) -> None:
        if not self.is_closed and self.unsent:
            self._loop.add_writer(self._sock.fileno(), self._flush)

    def _send_some(self) -> bool:
        """Writes once; returns whether the kernel took all pieces."""
        first, descriptor = self.unsent[0]
        if descriptor is not None:
            offered = [first]
            sent = socket.send_fds(self._sock, offered, [descriptor])
            # The descriptor is sent. The rest of the piece is sent without it.
            self.unsent[0] = (first, None)
            os.close(descriptor)
        else:
            offered = []
            for piece, other in self.unsent:
                if other is not None or len(offered) == _PIECES_PER_CALL:
                    break
                offered.append(piece)
            sent = self._sock.sendmsg(offered)
        for _ in offered:
            self.unsent.popleft()
        left = []
        for piece in offered:
            if sent < len(piece):
                left.append((piece[sent:], None))
            sent = max(0, sent - len(piece))
        self.unsent.extendleft(reversed(left))
        return not left

    def _drop_unsent(self) -> None:
        for _, descriptor in self.unsent:
            if descriptor is not None:
                os.close(descriptor)
        self.unsent.clear()

    def _read(self) -> None:
        try:
            nbytes, ancillary, flags, _ = self._sock.recvmsg_into((self._buffer,), _ANCILLARY_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._break(error)
            return
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                self.descriptors.extend(struct.unpack(f"{len(data) // 4}i", data))
        if flags & _CUT_SHORT:
            self._break("this process has no file descriptors left")
            return
        if nbytes:
            self._on_bytes(self._buffer[:nbytes])
        else:
            self._break("the other side is gone")

    def _fail(self, error: OSError) -> ConnectionBroken:
        """Notes that nothing can be written any more, and returns the error."""
        if not isinstance(error, (BrokenPipeError, ConnectionResetError)):
            return self._break(error)
        # The other side has ended. Its last bytes have not been read yet; the reader will reach their end.
        self._unwritable = True
        self._loop.remove_writer(self._sock.fileno())
        self._drop_unsent()
        self.drained.set()
        return ConnectionBroken(f"the shared-memory connection broke: {error}")

    def _break(self, reason: object) -> ConnectionBroken:
        if not self._closed:
            self.close()
            self._on_broken(f"the shared-memory connection broke: {reason}")
        return ConnectionBroken(f"the shared-memory connection broke: {reason}")


def joined(pieces: Sequence[Piece]) -> list[Piece]:
    """The same bytes in fewer pieces: adjacent small ones are joined."""
    few: list[Piece] = []
    small: list[Piece] = []
    nbytes = 0
    for piece in pieces:
        if len(piece) > _SMALL_PIECE or nbytes + len(piece) > _JOINED_BYTES:
            few.append(b"".join(small))
            small, nbytes = [], 0
        if len(piece) > _SMALL_PIECE:
            few.append(piece)
        else:
            small.append(piece)
            nbytes += len(piece)
    few.append(b"".join(small))
    return [piece for piece in few if len(piece)]
