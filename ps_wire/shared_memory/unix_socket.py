"""The Unix socket of a shared-memory connection: sends bytes and descriptors, in order, without blocking."""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, ClassVar, Final

from ps_wire.connections.connection import ConnectionBroken
from ps_wire.sockets.stream_socket import StreamSocket, rest

if TYPE_CHECKING:
    from ps_wire.sockets.stream_socket import Piece, Reader

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
