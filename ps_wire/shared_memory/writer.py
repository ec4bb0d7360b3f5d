"""Sends the records of one end of a shared-memory connection, with reports of freed segments."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from ps_wire.sockets.record import HEADER
from ps_wire.sockets.writer import RecordWriter

if TYPE_CHECKING:
    from ps_wire.connections.traffic import Traffic
    from ps_wire.shared_memory.unix_socket import UnixSocket

SEGMENT: Final = 1
NEW_SEGMENT: Final = 2
GIVE_BACK: Final = 3
DROPPED: Final = 4
RETIRE: Final = 6

_MANY_FREED: Final = 4
"""Freed segments that are reported without waiting for another message."""


class SegmentWriter(RecordWriter):
    """Writes records, descriptors of segments, and reports of freed segments.

    Args:
        sock: The socket.
        traffic: Counts the bytes.
    """

    def __init__(self, sock: UnixSocket, traffic: Traffic) -> None:
        super().__init__(sock, traffic)
        self._unix_socket = sock
        self._freeing = False

    def write_new(self, record: bytes, descriptor: int) -> None:
        """Writes the first record of a segment at once, with its descriptor; raises what `write` raises."""
        self._bunch = 0
        self._collect(record, ())
        self._unix_socket.write_with(self._take_gathered(), descriptor)

    def free(self, kind: int, number: int) -> None:
        """Reports a freed segment. May be called in any thread, also by the garbage collector."""
        self._reports.append((kind, number))
        # Few of them wait for the next message, because waking the event loop and the other process costs more.
        if len(self._reports) >= _MANY_FREED and not self._freeing:
            self._freeing = True
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._tell_freed)

    def _tell_freed(self) -> None:
        self._freeing = False
        self.flush()

    def _notes(self) -> bytes:
        notes = super()._notes()
        while self._reports:
            kind, number = self._reports.popleft()
            notes += HEADER.pack(kind, 0, number, 0)
        return notes
