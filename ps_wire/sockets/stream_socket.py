"""A connected stream socket: writes pieces of memory in order, and reads, without blocking."""

from __future__ import annotations

import asyncio
import os
import select
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, ClassVar, Final, Protocol

from ps_wire.connections.connection import ConnectionBroken
from ps_wire.runtime import forks

if TYPE_CHECKING:
    import socket

Piece = bytes | bytearray | memoryview

_PIECES_PER_CALL: Final = 512
"""Most pieces per call. The kernel refuses more than 1,024 (IOV_MAX)."""

_SMALL_PIECE: Final = 4096
"""Pieces up to this size are joined if there are many: copying them costs less than passing each to the kernel."""

_JOINED_BYTES: Final = 64 * 1024
"""Most bytes that are joined at a time."""

_LOOK_SECONDS: Final = 1.0
"""Interval of checks for the end of the other side while nothing is read, in seconds."""


class Reader(Protocol):
    """Takes the bytes that arrive on a socket."""

    @property
    def buffer(self) -> memoryview:
        """The memory that the next bytes are read into; never empty."""

    def read(self, nbytes: int) -> None:
        """Takes the bytes that were read into that memory."""


class StreamSocket:
    """Writes pieces of memory, and reads. The streams of asyncio would copy once more, and switch tasks per message.

    A subclass may replace `_transmit`, `_send` and `_receive`, to send more than bytes, or to encrypt them. `on_broken`
    is called once with the reason when nothing more can be read. It is `drained` while no piece waits `unsent`, and may
    still be read when it `is_closed` for writing.
    """

    connection: ClassVar[str] = "the connection"
    """What breaks, in messages."""

    def __init__(self, sock: socket.socket, reader: Reader, on_broken: Callable[[str], None]) -> None:
        sock.setblocking(False)
        self.unsent: deque[memoryview] = deque()
        self.drained = asyncio.Event()
        self.drained.set()
        self.reading = True
        self._sock = sock
        # Like `_transmit`, for a single piece: `send` is cheaper than `sendmsg`.
        self._send: Callable[[Piece], int] = sock.send
        self._loop = asyncio.get_running_loop()
        self._reader = reader
        self._on_broken = on_broken
        self.is_closed = False
        self._closed = False
        self._looking: asyncio.TimerHandle | None = None
        self._loop.add_reader(sock.fileno(), self._read)
        forks.belongs_here(self._loop)
        forks.put_away_in_children(self)

    def write(self, pieces: Sequence[Piece]) -> None:
        """Writes pieces, or raises `ConnectionBroken`. They must not change until the kernel has taken them."""
        if self.is_closed:
            raise ConnectionBroken(f"{self.connection} is closed")
        if len(pieces) > _PIECES_PER_CALL:
            pieces = joined(pieces)
        sent = 0
        if not self.unsent:
            try:
                sent = self._send(pieces[0]) if len(pieces) == 1 else self._transmit(pieces[:_PIECES_PER_CALL])
            except BlockingIOError:
                pass  # the kernel takes nothing now
            except OSError as error:
                raise self._fail(error) from error
            if sent == sum(map(len, pieces)):
                return
        self._keep(rest(pieces, sent))

    def pause(self) -> None:
        """Stops reading, so that the other side has to wait. Its end is still noticed."""
        if not self._closed:
            self.reading = False
            self._loop.remove_reader(self._sock.fileno())
            self._look_later()

    def resume(self) -> None:
        """Continues to read."""
        if not self._closed:
            self.reading = True
            self._look_no_more()
            self._watch()

    def close(self) -> None:
        """Closes the socket; unwritten pieces are lost. Calling it again does nothing."""
        if self._closed:
            return
        self._closed = self.is_closed = True
        self._look_no_more()
        self._loop.remove_reader(self._sock.fileno())
        self._loop.remove_writer(self._sock.fileno())
        self._sock.close()
        self._drop_unsent()
        self.drained.set()

    def forked(self) -> None:
        """In a forked child: closes the child's copy, so that the other side notices the end of the parent."""
        if not self._closed:
            self._closed = self.is_closed = True
            # Not through the loop, whose selector is shared with the parent.
            os.close(self._sock.detach())
            self._drop_unsent()

    # What a subclass may replace

    def _transmit(self, pieces: Sequence[Piece]) -> int:
        """Passes pieces to the kernel; returns the number of bytes that it took."""
        return self._sock.sendmsg(pieces)

    def _transmit_kept(self, pieces: Sequence[Piece]) -> int:
        """Like `_transmit`, for pieces that had to wait."""
        return self._transmit(pieces)

    def _receive(self, buffer: memoryview) -> int:
        """Reads into memory; returns the number of bytes, 0 at the end of the stream."""
        return self._sock.recv_into(buffer)

    def _survives(self, error: OSError) -> bool:
        """Whether a failed write will be tried again later."""
        return False

    def _drop_unsent(self) -> None:
        self.unsent.clear()

    # Writing

    def _keep(self, pieces: Sequence[memoryview]) -> None:
        """Keeps pieces until the kernel takes them."""
        self.unsent.extend(pieces)
        if self.unsent and self.drained.is_set():
            self.drained.clear()
            self._loop.add_writer(self._sock.fileno(), self._flush)

    def _flush(self) -> None:
        """Writes what is kept, until the kernel takes no more of it."""
        try:
            while self.unsent:
                sent = self._transmit_kept(list(islice(self.unsent, _PIECES_PER_CALL)))
                while sent and sent >= len(self.unsent[0]):
                    sent -= len(self.unsent.popleft())
                if sent:
                    self.unsent[0] = self.unsent[0][sent:]
                    return
        except BlockingIOError:
            return
        except OSError as error:
            if not self._survives(error):
                self._fail(error)
            return
        self._loop.remove_writer(self._sock.fileno())
        self.drained.set()

    # Reading

    def _watch(self) -> None:
        """Has the loop tell when there is something to read."""
        try:
            self._loop.add_reader(self._sock.fileno(), self._read)
        except RuntimeError as error:
            # After an error of the socket, uvloop has closed what it watches it with.
            self._break(error)

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
            self._watch()
        else:
            self._look_later()

    def _read(self) -> None:
        try:
            nbytes = self._receive(self._reader.buffer)
        except BlockingIOError:
            return
        except OSError as error:
            self._break(error)
            return
        if nbytes:
            self._reader.read(nbytes)
        else:
            self._break("the other side is gone")

    # Failing

    def _fail(self, error: OSError) -> ConnectionBroken:
        """Notes that nothing can be written any more, and returns the error."""
        if not isinstance(error, (BrokenPipeError, ConnectionResetError)):
            return self._break(error)
        # The other side has ended. Its last bytes have not been read yet; the reader will reach their end.
        self.is_closed = True
        self._loop.remove_writer(self._sock.fileno())
        self._drop_unsent()
        self.drained.set()
        return ConnectionBroken(f"{self.connection} broke: {error}")

    def _break(self, reason: object) -> ConnectionBroken:
        if not self._closed:
            self.close()
            self._on_broken(f"{self.connection} broke: {reason}")
        return ConnectionBroken(f"{self.connection} broke: {reason}")


def rest(pieces: Sequence[Piece], sent: int) -> list[memoryview]:
    """The pieces without their first bytes."""
    left = []
    for piece in pieces:
        if sent >= len(piece):
            sent -= len(piece)
            continue
        left.append(memoryview(piece)[sent:])
        sent = 0
    return left


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
