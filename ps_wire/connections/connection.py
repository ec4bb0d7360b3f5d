"""What a connection between a trainer and an owner is, whatever carries it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from ps_wire.connections.frames import Packet

if TYPE_CHECKING:
    from ps_wire.v1.frames_pb2 import SharedMemoryOffer

Handle = Callable[[Packet], bool | asyncio.Future[bool]]
"""Takes a packet and says whether it was the last one; or gives a future that will say so. Until then nothing more is
handed over or read, so that the other side is held up."""


class ConnectionBroken(Exception):
    """The connection is gone: the other side vanished, or the way to it did.

    Not a `PsError`: whoever holds the connection opens another one, and only says so when that fails.
    """


class Connection(Protocol):
    """Packets in order, in both directions, until one side closes.

    One task may send and one may receive at a time. A packet that was sent may still be lost with the connection.
    """

    @property
    def part_bytes(self) -> int:
        """Largest payload a packet may have: larger messages are sent in parts, between which others may pass."""

    def send_now(self, packet: Packet, later: bool = False) -> bool:
        """Hands a packet over without waiting, if this connection can do that at all, and at this moment.

        Args:
            packet: To be sent.
            later: Nobody waits for it: it may stay for some milliseconds, to travel with another.

        Returns:
            Whether it was handed over; if not, it must be sent with `send`.

        Raises:
            ConnectionBroken: It cannot arrive any more.
        """

    async def send(self, packet: Packet) -> None:
        """Hands a packet over; waits while the other side is slow.

        Raises:
            ConnectionBroken: It cannot arrive any more.
        """

    async def receive(self) -> Packet | None:
        """The next packet, or None when the other side has closed in good order.

        Raises:
            ConnectionBroken: The connection ended without a close.
        """

    async def close(self) -> None:
        """Ends the connection. Calling it again does nothing."""


@runtime_checkable
class Delivering(Protocol):
    """A connection that hands packets over as they arrive, without waking a task for each of them."""

    async def deliver(self, handle: Handle) -> None:
        """Calls `handle` with every packet until it says that this was the last one, or nothing more will come.

        Raises:
            ConnectionBroken: The connection broke.
            Exception: Whatever `handle` raises.
        """


async def deliver(connection: Connection, handle: Handle) -> None:
    """The same for any connection."""
    if isinstance(connection, Delivering):
        await connection.deliver(handle)
        return
    while (packet := await connection.receive()) is not None:
        last = handle(packet)
        if await last if isinstance(last, asyncio.Future) else last:
            return


class Connector(Protocol):
    """Opens connections to one address."""

    @property
    def address(self) -> str:
        """Where it leads, for messages to people."""

    async def connect(self) -> Connection:
        """Opens a new connection.

        Raises:
            ConnectionBroken: There is nobody at the address, or the way is closed.
        """

    async def connect_shared_memory(self, offer: SharedMemoryOffer, max_message_bytes: int) -> Connection | None:
        """Opens a shared-memory connection that an owner has offered, or returns None if this connector has none.

        Raises:
            ConnectionBroken: The shared-memory connection cannot be had.
        """

    async def close(self) -> None:
        """Gives back what connections of this connector share. Calling it again does nothing."""
