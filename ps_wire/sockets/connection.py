"""A connection over a socket, on which each packet is a record."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from ps_wire.connections.connection import Connection, ConnectionBroken, Traffic
from ps_wire.errors import InvalidArgumentError
from ps_wire.sockets.delivery import Delivery
from ps_wire.sockets.reader import RecordReader
from ps_wire.sockets.record import END, HEADER, inline_record

if TYPE_CHECKING:
    from ps_wire.connections.connection import Handle, Place
    from ps_wire.connections.frames import Packet
    from ps_wire.sockets.stream_socket import StreamSocket
    from ps_wire.sockets.writer import RecordWriter

_JOINED_BYTES: Final = 4096
"""Payloads up to this size are copied into their record, which costs less than writing a second piece of memory."""


class RecordConnection(Connection):
    """One end of a connection over a socket. A subclass opens the socket and its writer, and passes them to `_begin`.

    A record with a payload of more than `most_payload` bytes ends it.
    """

    def __init__(self, most_payload: int, traffic: Traffic | None) -> None:
        self._traffic = traffic or Traffic()
        self._reader = RecordReader(most_payload, self._traffic, self._other_record, self._refuse)

    def _begin(self, sock: StreamSocket, writer: RecordWriter) -> None:
        self._stream = sock
        self._records = writer
        self._delivery = Delivery(sock, self._reader.arrived)
        # The answers to the requests that have arrived are written together.
        self._reader.on_read = partial(writer.in_turn, self._delivery.hand_over)

    async def send(self, packet: Packet) -> None:
        while not self.send_now(packet):
            await self._stream.drained.wait()

    def send_now(self, packet: Packet, later: bool = False, at_once: bool = False) -> bool:
        if self._delivery.ended:
            raise ConnectionBroken(f"{self._stream.connection} is closed")
        # While the other side is slow, messages wait in the outbox, where they are counted.
        if self._stream.unsent:
            return False
        frame, payload = packet
        if payload:
            nbytes = packet.nbytes
            if nbytes > _JOINED_BYTES:
                return self._send_payload(packet, nbytes)
            self._records.write(b"".join((inline_record(frame, nbytes), *payload)))
        elif later:
            self._records.postpone(inline_record(frame, 0))
        else:
            self._records.write(inline_record(frame, 0), (), at_once)
        return True

    def _send_payload(self, packet: Packet, nbytes: int) -> bool:
        """Sends a packet with a longer payload; returns whether it was sent."""
        self._records.write(inline_record(packet.frame, nbytes), packet.payload)
        return True

    def gather(self) -> None:
        self._records.gather()

    def release(self) -> None:
        self._records.release()

    async def receive(self) -> Packet | None:
        return await self._delivery.receive()

    async def deliver(self, handle: Handle, place: Place | None = None) -> None:
        self._reader.place = place
        try:
            await self._delivery.deliver(handle)
        finally:
            self._reader.place = None

    async def close(self) -> None:
        if not self.is_over:
            with suppress(ConnectionBroken):
                self._records.write(HEADER.pack(END, 0, 0, 0), at_once=True)
        self._let_go()
        self._delivery.stop()

    def cut(self, reason: str = "") -> None:
        """Breaks the connection, as the end of a process does."""
        self._let_go()
        self._break(reason or f"{self._stream.connection} was cut")

    def _let_go(self) -> None:
        """Frees what belongs to the connection."""
        self._records.end()
        self._stream.close()

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory that this end writes to."""
        return 0

    @property
    def is_over(self) -> bool:
        """Whether it was closed, or is broken."""
        return self._delivery.ended or bool(self._delivery.broken)

    # What the reader calls

    def _other_record(self, kind: int, frame: memoryview, number: int, nbytes: int) -> None:
        """Handles a record without a payload on the socket; one of an unknown kind is an `InvalidArgumentError`."""
        if kind != END:
            raise InvalidArgumentError(f"a record of kind {kind}")
        self._records.end()
        self._delivery.end()

    def _refuse(self, reason: str) -> None:
        self._break(f"the other side does not speak the protocol of {self._stream.connection}: {reason}")
        self._stream.close()

    def _break(self, reason: str) -> None:
        self._records.end()
        self._delivery.break_off(reason)
