"""Queues messages for one connection and sends them in turns, so that a small one never waits for a large one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext

from ps_wire.connections.buffers import LARGE_BYTES, RECLAIMER
from ps_wire.connections.connection import Connection, ConnectionBroken
from ps_wire.connections.frames import MOST, Packet, batched, is_small
from ps_wire.limits import PART_BYTES
from ps_wire.v1.frames_pb2 import Frame, Part

_SMALL = 64 * 1024
"""Largest message that may overtake others, in bytes."""


class Outbox:
    """Queues messages and writes them to a connection, one packet at a time, from the one task that runs `drain`.

    While `drain` runs, a message of one packet is sent at once if no other waits and the connection can take it.
    Messages that the connection has not taken wholly are `waiting`.
    """

    def __init__(self) -> None:
        self._connection: Connection | None = None
        self._part_bytes = PART_BYTES
        self.waiting: deque[Iterator[Packet]] = deque()
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
        at_once: bool = False,
    ) -> None:
        """Queues a message with a payload of `nbytes`, which must not change until it is sent.

        `sent` is called once the connection has taken all of it; not if the connection breaks before. `later` and
        `at_once` are those of `Connection.send_now`.
        """
        if nbytes:
            frame.payload_bytes = nbytes
            if nbytes >= LARGE_BYTES:
                RECLAIMER.used()
        connection = self._connection
        # A small message does not wait for large ones.
        if connection is not None and nbytes <= (_SMALL if self.waiting else self._part_bytes):
            try:
                gone = connection.send_now(Packet(frame, tuple(chunks)), later, at_once)
            except ConnectionBroken:
                # The task that reads from the connection notices this, too, and ends it.
                gone = True
            if gone:
                if sent is not None:
                    sent()
                return
        message = packets(frame, chunks, self._part_bytes)
        self.waiting.append(message if sent is None else _telling(message, sent))
        if not self._ended:
            self._idle.clear()
        self._ready.set()

    def together(self) -> AbstractContextManager[None]:
        """A block whose messages are written in one system call, if the connection supports that.

        It must not contain `await`, because the messages of other tasks would wait for its end, too.
        """
        return nullcontext() if self._connection is None else self._connection.gathering()

    async def drain(self, connection: Connection) -> None:
        """Writes queued messages until it is cancelled. Raises `ConnectionBroken` when the connection broke."""
        self._connection = connection
        self._part_bytes = connection.part_bytes
        try:
            while True:
                while self.waiting:
                    for packet in batched(self._take(MOST)) if connection.batches else self._take(1):
                        await connection.send(packet)
                        # It would keep the payload until the next message.
                        del packet
                self._idle.set()
                self._ready.clear()
                await self._ready.wait()
        finally:
            # Nothing more will be sent, so `flushed` must not wait.
            self._ended = True
            self._connection = None
            self._idle.set()

    def _take(self, most: int) -> list[Packet]:
        """The next packets of the first messages, up to one that is not small; these messages then stand last."""
        taken = []
        for _ in range(min(most, len(self.waiting))):
            message = self.waiting.popleft()
            packet = next(message, None)
            if packet is not None:
                self.waiting.append(message)
                taken.append(packet)
                if not is_small(packet):
                    break
        return taken

    async def flushed(self) -> None:
        """Waits until the connection has taken all messages queued so far, or cannot take them any more."""
        await self._idle.wait()


def _telling(message: Iterator[Packet], sent: Callable[[], None]) -> Iterator[Packet]:
    """Yields the packets of a message, and then calls `sent`."""
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
    """Splits and joins chunks into parts of at most `part_bytes`."""
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
