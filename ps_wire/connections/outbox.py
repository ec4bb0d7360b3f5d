"""Outbox: what waits to be sent on one connection, taking turns so that a small message never waits for a large one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from ps_wire.connections.connection import Connection, ConnectionBroken
from ps_wire.connections.frames import Packet
from ps_wire.connections.reclaim import LARGE_BYTES, RECLAIMER
from ps_wire.limits import PART_BYTES
from ps_wire.v1.frames_pb2 import Frame, Part

_SMALL = 64 * 1024
"""Bytes up to which a message may overtake others."""


class Outbox:
    """Queues messages and writes them to a connection, one packet at a time, from the one task that runs `drain`.

    Once that runs, a message of one packet goes out at once when nothing waits and the connection can take it.
    """

    def __init__(self) -> None:
        self._connection: Connection | None = None
        self._part_bytes = PART_BYTES
        self._waiting: deque[Iterator[Packet]] = deque()
        self._ready = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._ended = False

    def put(
        self,
        frame: Frame,
        chunks: Sequence[memoryview] = (),
        nbytes: int = 0,
        later: bool = False,
        sent: Callable[[], None] | None = None,
    ) -> None:
        """Queues a message.

        Args:
            frame: The message.
            chunks: Its payload, which must not change until it was sent.
            nbytes: Length of the payload.
            later: Nobody waits for it: it may stay for some milliseconds, to travel with another.
            sent: Called once the connection has taken all of it; never, if that does not come to pass.
        """
        if nbytes:
            frame.payload_bytes = nbytes
            if nbytes >= LARGE_BYTES:
                RECLAIMER.used()
        # A small message does not wait for large ones.
        fits = nbytes <= self._part_bytes if not self._waiting else nbytes <= _SMALL
        if fits and self._connection is not None and not self._ended:
            try:
                gone = self._connection.send_now(Packet(frame, tuple(chunks)), later)
            except ConnectionBroken:
                # What reads from the connection notices too, and ends it.
                gone = True
            if gone:
                if sent is not None:
                    sent()
                return
        message = packets(frame, chunks, self._part_bytes)
        self._waiting.append(message if sent is None else _telling(message, sent))
        if not self._ended:
            self._idle.clear()
        self._ready.set()

    async def drain(self, connection: Connection) -> None:
        """Writes what is queued, and what will be, until cancelled.

        Raises:
            ConnectionBroken: The connection broke.
        """
        self._connection, self._part_bytes = connection, connection.part_bytes
        try:
            while True:
                while self._waiting:
                    message = self._waiting.popleft()
                    packet = next(message, None)
                    if packet is None:
                        continue
                    self._waiting.append(message)
                    await connection.send(packet)
                self._idle.set()
                self._ready.clear()
                await self._ready.wait()
        finally:
            # Nothing more will be sent, so nobody needs to wait for it.
            self._ended = True
            self._idle.set()

    async def flushed(self) -> None:
        """Waits until everything queued so far was handed to the connection, or cannot be any more."""
        await self._idle.wait()


def _telling(message: Iterator[Packet], sent: Callable[[], None]) -> Iterator[Packet]:
    """The same packets; `sent` is called when the one after the last is asked for."""
    yield from message
    sent()


def packets(frame: Frame, chunks: Sequence[memoryview], part_bytes: int = PART_BYTES) -> Iterator[Packet]:
    """The packets of one message: its frame with the first part of the payload, then the other parts."""
    parts = _parts(chunks, part_bytes)
    first = Packet(frame, next(parts, ()))
    offset = first.nbytes
    yield first
    for part in parts:
        packet = Packet(Frame(number=frame.number, part=Part(offset=offset)), part)
        offset += packet.nbytes
        yield packet


def _parts(chunks: Sequence[memoryview], part_bytes: int) -> Iterator[tuple[memoryview, ...]]:
    """Cuts and gathers chunks into parts of at most so many bytes."""
    part: list[memoryview] = []
    room = part_bytes
    for chunk in chunks:
        position = 0
        while position < len(chunk):
            piece = chunk[position : position + room]
            part.append(piece)
            position += len(piece)
            room -= len(piece)
            if not room:
                yield tuple(part)
                part, room = [], part_bytes
    if part:
        yield tuple(part)
