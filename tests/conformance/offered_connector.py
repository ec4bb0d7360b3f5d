"""A connector of connections that owners offer, for tests without a session."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ps_wire.sockets.connection import RecordConnection
from ps_wire.v1.frames_pb2 import DirectOffer, SharedMemoryOffer


class OfferedConnector:
    """Opens connections that an owner usually offers in a session, without that session.

    Args:
        address: What it leads to.
        open: Opens a connection.
    """

    def __init__(self, address: str, open: Callable[[], Awaitable[RecordConnection]]) -> None:
        self.address = address
        self._open = open
        self._opened: list[RecordConnection] = []

    async def connect(self) -> RecordConnection:
        self._opened.append(await self._open())
        return self._opened[-1]

    async def connect_shared_memory(self, offer: SharedMemoryOffer, max_message_bytes: int) -> None:
        return None

    async def connect_direct(self, offer: DirectOffer) -> None:
        return None

    async def close(self) -> None:
        return None

    def cut(self) -> None:
        """Breaks every connection that it has opened."""
        for connection in self._opened:
            connection.cut()
