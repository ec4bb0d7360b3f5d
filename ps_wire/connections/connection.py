"""The interface of connections between trainers and owners, for every transport."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ps_wire.connections.frames import Packet
from ps_wire.limits import PART_BYTES
from ps_wire.v1.frames_pb2 import Frame

if TYPE_CHECKING:
    from ps_wire.v1.frames_pb2 import DirectOffer, SharedMemoryOffer


@dataclass(slots=True)
class Traffic:
    """Counts the bytes of messages, tensors included, on one event loop. All connections of a kind may share one."""

    received: int = 0
    sent: int = 0


Handle = Callable[[Packet], bool | asyncio.Future[bool]]
"""Takes a packet and returns whether it was the last one, or a future of that. Until the future is done, no further
packet is delivered or read, so that the other side has to wait."""

Place = Callable[[Frame, int], memoryview | None]
"""Gives the memory that the payload of a frame is received into, of that many bytes; None for memory of its own."""


class ConnectionBroken(Exception):
    """The connection is broken: the other side has ended, or the network has failed.

    Not a `PsError`: a session opens another connection, and raises an error only if that fails.
    """


class Connection:
    """Packets in order, in both directions, until one side closes. Every transport has a subclass.

    One task may send and one may receive at a time. A packet that was sent may still be lost if the connection breaks.
    """

    part_bytes: int = PART_BYTES
    """Largest payload of a packet. Larger messages are sent in parts, between which others can be sent."""

    batches: bool = False
    """Whether the other end takes several small packets in one."""

    @property
    def is_over(self) -> bool:
        """Whether it is known to be closed, by either side, or broken. Packets that arrived before may be left."""
        return False

    def send_now(self, packet: Packet, later: bool = False, at_once: bool = False) -> bool:
        """Sends a packet if the connection can take it now; returns whether it did. If not, `send` has to be used.

        One for which no side waits may be sent some milliseconds `later`, with another. One that goes `at_once` does
        not wait for others of this turn of the event loop. Raises `ConnectionBroken` if it cannot arrive any more.
        """
        return False

    async def send(self, packet: Packet) -> None:
        """Sends a packet; waits while the other side is slow. Raises `ConnectionBroken` if it cannot arrive."""
        raise NotImplementedError

    async def receive(self) -> Packet | None:
        """The next packet; None if the other side has closed. Raises `ConnectionBroken` if it ended without a close."""
        raise NotImplementedError

    async def deliver(self, handle: Handle, place: Place | None = None) -> None:
        """Calls `handle` with every packet until it returns true or the connection is closed.

        `place` gives memory for large payloads that are read from a socket. Raises `ConnectionBroken`, or what `handle`
        raised. A subclass may deliver packets as they arrive, without waking a task for each of them.
        """
        while (packet := await self.receive()) is not None:
            last = handle(packet)
            if await last if isinstance(last, asyncio.Future) else last:
                return

    def gathering(self) -> AbstractContextManager[None]:
        """A block at whose end the packets of `send_now` are written together, as far as a bounded memory allows."""
        return nullcontext()

    async def close(self) -> None:
        """Closes the connection. Calling it again does nothing."""
        raise NotImplementedError


class Connector(Protocol):
    """Opens connections to one address."""

    @property
    def address(self) -> str:
        """The address, for messages to people."""

    async def connect(self) -> Connection:
        """Opens a new connection. Raises `ConnectionBroken` if no server can be reached there."""

    async def connect_shared_memory(self, offer: SharedMemoryOffer, max_message_bytes: int) -> Connection | None:
        """Opens a connection that an owner has offered, or raises `ConnectionBroken`; None if it has no such kind."""

    async def connect_direct(self, offer: DirectOffer) -> Connection | None:
        """The same for a direct connection."""

    async def close(self) -> None:
        """Frees what the connections of this connector share. Calling it again does nothing."""
