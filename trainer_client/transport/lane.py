"""The trainer's end of a same-host lane."""

from __future__ import annotations

import os
import socket
import struct
from typing import Final

from ps_wire.connection import ConnectionBroken
from ps_wire.hosts import host_id
from ps_wire.lane import LaneConnection
from ps_wire.v1.frames_pb2 import LaneOffer

_CREDENTIALS: Final = struct.Struct("3i")


def open_lane(offer: LaneOffer, max_message_bytes: int) -> LaneConnection:
    """Connects to the socket that an owner has offered.

    Raises:
        ConnectionBroken: It is not there, or another user listens.
    """
    if not host_id():
        raise ConnectionBroken("this system has no lanes")
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.connect(b"\0" + offer.socket)
        _, user, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        if user != os.geteuid():
            raise ConnectionBroken(f"user {user} listens there, not this one")
        return LaneConnection(sock, max_message_bytes, offer.max_segment_bytes)
    except OSError as error:
        sock.close()
        raise ConnectionBroken(f"no lane: {error}") from None
    except ConnectionBroken:
        sock.close()
        raise
