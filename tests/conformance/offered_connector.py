"""A connector of connections that owners offer, for tests without a session."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from ps_wire.connections.connection import Connection
from ps_wire.v1.frames_pb2 import DirectOffer, SharedMemoryOffer


class Cuttable(Connection, Protocol):
    """A connection that a test can break."""

    def cut(self) -> None:
        """Breaks it, as a pulled cable does."""


class OfferedConnector:
    """Opens connections that an owner usually offers in a session, without that session.

    Args:
        address: What it leads to.
        open: Opens a connection.
    """

    def __init__(self, address: str, open: Callable[[], Awaitable[Cuttable]]) -> None:
        self.address = address
        self._open = open
        self._opened: list[Cuttable] = []

    async def connect(self) -> Connection:
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
