"""A transport that breaks on purpose, to test how a program handles faults of the network."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import TYPE_CHECKING

from ps_wire.connections.connection import Connection, ConnectionBroken, Connector
from ps_wire.connections.frames import Packet

if TYPE_CHECKING:
    from ps_wire.v1.frames_pb2 import DirectOffer, SharedMemoryOffer


class Fault(enum.Enum):
    """What to do with one packet."""

    NONE = "deliver it"
    CUT = "break the connection instead of delivering it"
    CUT_AFTER = "deliver it, then break the connection"
    TWICE = "deliver it twice"


class Direction(enum.Enum):
    """The direction of a packet."""

    TO_OWNER = "to the owner"
    TO_TRAINER = "to the trainer"


Plan = Callable[[Direction, int, Packet], Fault]
"""Decides about a packet. Arguments: its direction, the number of earlier packets in that direction, the packet."""


class FaultyConnector:
    """Opens connections of another connector, and lets a plan decide which of their packets arrive.

    Args:
        inner: The connector that opens the connections.
        plan: Decides about every packet. It counts the packets of all connections together.

    Attributes:
        connections: Number of connections that were opened.
    """

    def __init__(self, inner: Connector, plan: Plan) -> None:
        self._inner = inner
        self._plan = plan
        self._counts = dict.fromkeys(Direction, 0)
        self.connections = 0

    @property
    def address(self) -> str:
        return self._inner.address

    async def connect(self) -> FaultyConnection:
        self.connections += 1
        return FaultyConnection(await self._inner.connect(), self._decide)

    async def connect_shared_memory(self, offer: SharedMemoryOffer, max_message_bytes: int) -> FaultyConnection | None:
        shared_memory = await self._inner.connect_shared_memory(offer, max_message_bytes)
        return None if shared_memory is None else FaultyConnection(shared_memory, self._decide)

    async def connect_direct(self, offer: DirectOffer) -> FaultyConnection | None:
        direct = await self._inner.connect_direct(offer)
        return None if direct is None else FaultyConnection(direct, self._decide)

    async def close(self) -> None:
        await self._inner.close()

    def _decide(self, direction: Direction, packet: Packet) -> Fault:
        count = self._counts[direction]
        self._counts[direction] += 1
        return self._plan(direction, count, packet)


class FaultyConnection(Connection):
    """A connection that breaks when the plan says so."""

    def __init__(self, inner: Connection, decide: Callable[[Direction, Packet], Fault]) -> None:
        self.part_bytes = inner.part_bytes
        self._inner = inner
        self._decide = decide
        self._again: Packet | None = None
        self._broken = False

    # Not `send_now`: breaking the connection takes time.
    async def send(self, packet: Packet) -> None:
        self._check()
        fault = self._decide(Direction.TO_OWNER, packet)
        if fault is not Fault.CUT:
            await self._inner.send(packet)
        if fault is Fault.TWICE:
            await self._inner.send(packet)
        if fault in (Fault.CUT, Fault.CUT_AFTER):
            await self._cut()

    async def receive(self) -> Packet | None:
        self._check()
        if self._again is not None:
            packet, self._again = self._again, None
            return packet
        received = await self._inner.receive()
        self._check()
        if received is None:
            return None
        fault = self._decide(Direction.TO_TRAINER, received)
        if fault is Fault.CUT:
            await self._cut()
        if fault is Fault.CUT_AFTER:
            await self._break()
        if fault is Fault.TWICE:
            self._again = received
        return received

    async def close(self) -> None:
        await self._inner.close()

    async def _cut(self) -> None:
        await self._break()
        self._check()

    async def _break(self) -> None:
        self._broken = True
        await self._inner.close()

    def _check(self) -> None:
        if self._broken:
            raise ConnectionBroken("broken on purpose")
