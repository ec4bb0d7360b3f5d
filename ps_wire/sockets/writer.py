"""Sends the records of one end of a connection, in as few system calls as their urgency allows."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import repeat
from operator import call
from typing import TYPE_CHECKING, Final

from ps_wire.connections.connection import ConnectionBroken

if TYPE_CHECKING:
    from ps_wire.connections.connection import Traffic
    from ps_wire.sockets.stream_socket import Piece, StreamSocket

_BUNCH: Final = 16
"""Most records of one turn of the event loop that are written together."""

_MOST_GATHERED: Final = 256 * 1024
"""Most bytes that are gathered: more would keep the other side from beginning, and may not fit into the socket."""

_SOON: Final = 0.002
"""Seconds after which postponed records are sent, if no other record was sent before."""


class RecordWriter:
    """Writes records to a socket."""

    def __init__(self, sock: StreamSocket, traffic: Traffic) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = sock
        self._traffic = traffic
        # Records that go with the next one. A subclass may append to it in any thread.
        self._postponed: deque[bytes] = deque()
        self._flushing = False
        # Whether a record of this turn was written already; and whether `end_turn` will be called without the loop.
        self.is_busy = False
        self.in_turn = False
        self._bunch = 0
        self._ended = False
        self._gathering = False
        self._gathered: list[Piece] = []
        self._gathered_bytes = 0

    def write(self, record: bytes, payload: Sequence[memoryview] = (), at_once: bool = False) -> None:
        """Writes a record, after the postponed ones; raises `ConnectionBroken` if nothing can be written any more.

        The first record of a turn of the event loop is written at once, so that the other side can begin. Further
        records of the same turn are written together, so that many calls, or answers, do not cost a system call each.
        In a block of `gathering` all records are collected. One that is to go `at_once` waits in no case.
        """
        if not at_once:
            if self._gathering or self.is_busy:
                if self._waits(record, payload):
                    return
            else:
                self.is_busy = True
                if not self.in_turn:
                    self._loop.call_soon(self.end_turn)
        self._bunch = 0
        if self._gathered:
            self._collect(record, payload)
            self._socket.write(self._take_gathered())
            return
        if self._postponed:
            record = self._take_postponed() + record
        self._traffic.sent += len(record) + sum(map(len, payload))
        self._socket.write((record, *payload))

    def _waits(self, record: bytes, payload: Sequence[memoryview]) -> bool:
        """Collects a record, or postpones it to the end of the turn; returns false if it has to be written now."""
        if self._socket.is_closed:
            return False
        if self._gathering:
            self._collect(record, payload)
            if self._gathered_bytes >= _MOST_GATHERED:
                self._socket.write(self._take_gathered())
            return True
        if payload or self._bunch >= _BUNCH:
            return False
        self._postponed.append(record)
        self._bunch += 1
        return True

    @contextmanager
    def gathering(self) -> Iterator[None]:
        """Collects the records of the outermost block, and writes them in one system call if the socket takes them."""
        outer, self._gathering = self._gathering, True
        try:
            yield
        finally:
            self._gathering = outer
            if self._gathered and not outer:
                # The task that reads from the connection notices its end, too.
                with suppress(ConnectionBroken):
                    self._socket.write(self._take_gathered())

    def add(self, record: bytes) -> None:
        """Sends a record with the next one."""
        self._postponed.append(record)

    def postpone(self, record: bytes) -> None:
        """Sends a record with the next one, or after some milliseconds.

        For records that no side waits for: every write wakes the other process, which can cost more than a small call.
        """
        self._postponed.append(record)
        if not self._flushing:
            self._flushing = True
            self._loop.call_later(_SOON, self.flush)

    def flush(self) -> None:
        """Writes postponed records, if the socket is open."""
        self._flushing = False
        if not self._ended and self._postponed:
            with suppress(ConnectionBroken):
                self.write(b"", at_once=True)

    def end(self) -> None:
        """Cancels the timers."""
        self._ended = True

    def _take_postponed(self) -> bytes:
        return b"".join(map(call, repeat(self._postponed.popleft, len(self._postponed))))

    def _collect(self, record: bytes, payload: Sequence[memoryview]) -> None:
        if self._postponed:
            record = self._take_postponed() + record
        self._gathered.append(record)
        self._gathered += payload
        self._gathered_bytes += len(record) + sum(map(len, payload))

    def _take_gathered(self) -> list[Piece]:
        """The collected pieces, which are counted as sent."""
        pieces, self._gathered = self._gathered, []
        self._traffic.sent += self._gathered_bytes
        self._gathered_bytes = 0
        return pieces

    def end_turn(self) -> None:
        """Writes what was postponed to the end of the turn."""
        self.is_busy = False
        if self._bunch:
            self.flush()
