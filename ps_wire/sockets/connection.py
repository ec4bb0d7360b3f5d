"""A connection over a socket, on which each packet is a record."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from ps_wire.connections.connection import Connection, ConnectionBroken, Traffic
from ps_wire.errors import InvalidArgumentError
from ps_wire.sockets.reader import END, HEADER, INLINE, RecordReader

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from ps_wire.connections.connection import Handle, Place
    from ps_wire.connections.frames import Packet
    from ps_wire.sockets.stream_socket import StreamSocket
    from ps_wire.sockets.writer import RecordWriter

_JOINED_BYTES: Final = 4096
"""Payloads up to this size are copied into their record, which costs less than writing a second piece of memory."""

TURN_SECONDS: Final = 0.002
"""Seconds that the messages of one connection are delivered before the event loop serves other connections."""


class RecordConnection(Connection):
    """One end of a connection over a socket. A subclass opens the socket and its writer, and passes them to `_begin`.

    Packets are delivered in order, to a task in `receive` or to a function. While one has to wait, the socket is not
    read. A record with a payload of more than `most_payload` bytes ends the connection.
    """

    def __init__(self, most_payload: int, traffic: Traffic | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._traffic = traffic or Traffic()
        self._reader = RecordReader(most_payload, self._traffic, self._other_record, self._refuse)
        self._arrived = self._reader.arrived
        # Whether one side has closed the connection; why it broke, or nothing.
        self._ended = False
        self._broken = ""
        self._receiver: asyncio.Future[None] | None = None
        self._handle: Handle | None = None
        self._pausing: asyncio.Future[bool] | None = None
        self._yielding = False

    def _begin(self, sock: StreamSocket, writer: RecordWriter) -> None:
        self._stream = sock
        self._records = writer
        self._reader.on_read = self._hand_over

    # Sending

    async def send(self, packet: Packet) -> None:
        while not self.send_now(packet):
            await self._stream.drained.wait()

    def send_now(self, packet: Packet, later: bool = False, at_once: bool = False) -> bool:
        if self._ended:
            raise ConnectionBroken(f"{self._stream.connection} is closed")
        # While the other side is slow, messages wait in the outbox, where they are counted.
        if self._stream.unsent:
            return False
        frame, payload = packet.frame.SerializeToString(), packet.payload
        nbytes = sum(map(len, payload))
        if nbytes > _JOINED_BYTES:
            return self._send_payload(frame, payload, nbytes)
        record = b"".join((HEADER.pack(INLINE, len(frame), 0, nbytes), frame, *payload))
        if later:
            self._records.postpone(record)
        else:
            self._records.write(record, (), at_once)
        return True

    def _send_payload(self, frame: bytes, payload: Sequence[memoryview], nbytes: int) -> bool:
        """Sends a packet with a longer payload; returns whether it was sent."""
        self._records.write(HEADER.pack(INLINE, len(frame), 0, nbytes) + frame, payload)
        return True

    def gathering(self) -> AbstractContextManager[None]:
        return self._records.gathering()

    # Delivering

    async def receive(self) -> Packet | None:
        while not self._arrived:
            if self._ended:
                return None
            if self._broken:
                raise ConnectionBroken(self._broken)
            self._receiver = self._loop.create_future()
            await self._receiver
        return self._arrived.popleft()

    async def deliver(self, handle: Handle, place: Place | None = None) -> None:
        self._reader.place = place
        self._receiver = self._loop.create_future()
        self._handle = handle
        try:
            self._hand_over()
            await self._receiver
        finally:
            self._handle = self._reader.place = None

    def _hand_over(self) -> None:
        """Delivers the packets that have arrived.

        It is a turn of its own, so that the answers to requests that have arrived together are written together when it
        returns. Within another turn it is part of that.
        """
        arrived, handle, records = self._arrived, self._handle, self._records
        if self._pausing is not None:
            return
        if handle is None:
            if arrived:
                self._wake()
            return
        began = time.perf_counter() if len(arrived) > 1 else 0.0
        records.in_turn = not records.is_busy
        try:
            while arrived and self._handle is not None:
                last = handle(arrived.popleft())
                if last is False:
                    if arrived and time.perf_counter() - began > TURN_SECONDS:
                        # Until the event loop has run once.
                        turn: asyncio.Future[bool] = self._loop.create_future()
                        self._yielding = True
                        self._loop.call_soon(turn.set_result, False)
                        self._pause(turn)
                        return
                elif last is True:
                    self._hand_no_more()
                else:
                    self._pause(last)
                    return
            if (self._ended or self._broken) and self._handle is not None:
                # All earlier packets have been delivered.
                self._wake()
        except Exception as error:
            self._fail(error)
        finally:
            if records.in_turn:
                records.in_turn = False
                if records.is_busy:
                    records.end_turn()

    def _pause(self, until: asyncio.Future[bool]) -> None:
        """Stops reading until a future is done: the socket fills, and the other side has to wait."""
        self._pausing = until
        self._stream.pause()
        until.add_done_callback(self._go_on)

    def _go_on(self, done: asyncio.Future[bool]) -> None:
        self._pausing = None
        self._yielding = False
        if done.cancelled() or self._handle is None:
            return
        if (error := done.exception()) is not None:
            self._fail(error)
            return
        if done.result():
            self._hand_no_more()
            return
        self._stream.resume()
        self._hand_over()

    def _hand_no_more(self) -> None:
        self._handle = None
        self._wake()

    def _fail(self, error: BaseException) -> None:
        self._handle = None
        if self._receiver is not None and not self._receiver.done():
            self._receiver.set_exception(error)

    def _wake(self) -> None:
        if self._receiver is not None and not self._receiver.done():
            if self._broken and self._handle is not None:
                self._receiver.set_exception(ConnectionBroken(self._broken))
            else:
                self._receiver.set_result(None)

    # Ending

    @property
    def is_over(self) -> bool:
        return self._ended or bool(self._broken)

    async def close(self) -> None:
        if not self.is_over:
            with suppress(ConnectionBroken):
                self._records.write(HEADER.pack(END, 0, 0, 0), at_once=True)
        self._let_go()
        self._deliver_no_more()

    def cut(self, reason: str = "") -> None:
        """Breaks the connection, as the end of a process does."""
        self._let_go()
        self._break(reason or f"{self._stream.connection} was cut")

    def _deliver_no_more(self) -> None:
        """This side has closed the connection; nothing that arrives is delivered."""
        self._ended = True
        self._wake()

    def _let_go(self) -> None:
        """Frees what belongs to the connection."""
        self._records.end()
        self._stream.close()

    def _break(self, reason: str) -> None:
        """Ends delivery because the connection broke: the receiver gets `ConnectionBroken` with this reason."""
        self._records.end()
        self._broken = self._broken or reason
        # The last messages of a side that has closed the connection, or that yields, are delivered first.
        if not self._yielding and not (self._ended and self._pausing is not None):
            self._wake()

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory that this end writes to."""
        return 0

    # What the reader calls

    def _other_record(self, kind: int, frame: memoryview, number: int, nbytes: int) -> None:
        """Handles a record without a payload on the socket; one of an unknown kind is an `InvalidArgumentError`."""
        if kind != END:
            raise InvalidArgumentError(f"a record of kind {kind}")
        # The other side has closed the connection; packets that arrived before are still delivered.
        self._records.end()
        self._ended = True
        if self._handle is None:
            self._wake()

    def _refuse(self, reason: str) -> None:
        self._break(f"the other side does not speak the protocol of {self._stream.connection}: {reason}")
        self._stream.close()
