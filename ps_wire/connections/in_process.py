"""A connection inside one process, made of two queues. For tests, and for owners inside a trainer."""

from __future__ import annotations

import asyncio

from ps_wire.connections.connection import Connection, ConnectionBroken
from ps_wire.connections.frames import Packet, parse, serialize


class _Pipe:
    """One direction: a queue of bytes that is closed or broken in the end."""

    def __init__(self) -> None:
        # None wakes the reader to check the state.
        self.items: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.closed = False
        self.broken = False

    def end(self, broken: bool) -> None:
        self.closed = True
        self.broken = self.broken or broken
        self.items.put_nowait(None)

    async def get(self) -> bytes | None:
        if self.broken:
            raise ConnectionBroken("the connection was cut")
        data = await self.items.get()
        if self.broken:
            self.items.put_nowait(None)
            raise ConnectionBroken("the connection was cut")
        if data is None:
            self.items.put_nowait(None)
        return data


class MemoryConnection(Connection):
    """One end of a pair made by `memory_pair`.

    Packets are sent as bytes, as on a network, so the two sides share no mutable objects.
    """

    def __init__(self, incoming: _Pipe, outgoing: _Pipe) -> None:
        self._incoming = incoming
        self._outgoing = outgoing

    async def send(self, packet: Packet) -> None:
        if self._outgoing.closed or self._incoming.closed:
            raise ConnectionBroken("the connection is closed")
        self._outgoing.items.put_nowait(serialize(packet))
        # Yields to other tasks, as sending on a network does.
        await asyncio.sleep(0)

    async def receive(self) -> Packet | None:
        data = await self._incoming.get()
        return None if data is None else parse(data)

    async def close(self) -> None:
        self._end(broken=False)

    def cut(self) -> None:
        """Breaks the connection for both ends; packets in transit are lost."""
        self._end(broken=True)

    def _end(self, broken: bool) -> None:
        for pipe in (self._outgoing, self._incoming):
            if not pipe.closed or broken:
                pipe.end(broken)


def memory_pair() -> tuple[MemoryConnection, MemoryConnection]:
    """Two connected ends."""
    there, back = _Pipe(), _Pipe()
    return MemoryConnection(back, there), MemoryConnection(there, back)
