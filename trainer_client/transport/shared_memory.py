"""Opens the trainer's end of a shared-memory connection. `Link` moves a session to it."""

from __future__ import annotations

import os
import socket
import struct
from typing import TYPE_CHECKING, Final

from ps_wire.connections.connection import ConnectionBroken
from ps_wire.shared_memory.connection import SharedMemoryConnection
from ps_wire.shared_memory.hosts import host_id

if TYPE_CHECKING:
    from ps_wire.v1.frames_pb2 import SharedMemoryOffer

_CREDENTIALS: Final = struct.Struct("3i")


def open_shared_memory(offer: SharedMemoryOffer, max_message_bytes: int) -> SharedMemoryConnection:
    """Connects to the socket that an owner has offered.

    Raises:
        ConnectionBroken: There is no such socket, or a process of another user listens on it.
    """
    if not host_id():
        raise ConnectionBroken("this system has no shared-memory connections")
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.connect(b"\0" + offer.socket)
        _, user, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        if user != os.geteuid():
            raise ConnectionBroken(f"a process of another user ({user}) listens there")
        return SharedMemoryConnection(sock, max_message_bytes, offer.max_segment_bytes)
    except OSError as error:
        sock.close()
        raise ConnectionBroken(f"no shared-memory connection: {error}") from None
    except ConnectionBroken:
        sock.close()
        raise
