"""A connection inside one process: the two ends are queues. For tests, and for owners embedded in a trainer."""

from __future__ import annotations

import asyncio
from typing import Final

from ps_wire.connections.connection import ConnectionBroken
from ps_wire.connections.frames import Packet, parse, serialize
from ps_wire.limits import PART_BYTES


class _Pipe:
    """One direction: bytes in order, then an end, which is orderly or not."""

    def __init__(self) -> None:
        # None wakes the reader to look at the state.
        self._items: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.closed = False
        self.broken = False

    def put(self, data: bytes) -> None:
        self._items.put_nowait(data)

    def end(self, broken: bool) -> None:
        self.closed = True
        self.broken = self.broken or broken
        self._items.put_nowait(None)

    async def get(self) -> bytes | None:
        if self.broken:
            raise ConnectionBroken("the connection was cut")
        data = await self._items.get()
        if self.broken:
            self._items.put_nowait(None)
            raise ConnectionBroken("the connection was cut")
        if data is None:
            self._items.put_nowait(None)
        return data


class MemoryConnection:
    """One end of a pair made by `memory_pair`.

    Packets cross as bytes, as they would on a wire, so nothing mutable is shared between the two sides.
    """

    def __init__(self, incoming: _Pipe, outgoing: _Pipe) -> None:
        self._incoming = incoming
        self._outgoing = outgoing

    part_bytes: Final = PART_BYTES

    def send_now(self, packet: Packet, later: bool = False) -> bool:
        return False

    async def send(self, packet: Packet) -> None:
        if self._outgoing.closed or self._incoming.closed:
            raise ConnectionBroken("the connection is closed")
        self._outgoing.put(serialize(packet))
        # As on a real wire, sending gives others a turn.
        await asyncio.sleep(0)

    async def receive(self) -> Packet | None:
        data = await self._incoming.get()
        return None if data is None else parse(data)

    async def close(self) -> None:
        self._end(broken=False)

    def cut(self) -> None:
        """Breaks the connection for both ends, as a pulled cable does; what was on the way is lost."""
        self._end(broken=True)

    def _end(self, broken: bool) -> None:
        for pipe in (self._outgoing, self._incoming):
            if not pipe.closed or broken:
                pipe.end(broken)


def memory_pair() -> tuple[MemoryConnection, MemoryConnection]:
    """Two connected ends."""
    there, back = _Pipe(), _Pipe()
    return MemoryConnection(back, there), MemoryConnection(there, back)
