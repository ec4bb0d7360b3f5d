"""Counts the open connections of one kind of an owner, for its metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ps_wire.sockets.connection import RecordConnection


class OpenConnections:
    """The connections of one kind that are open. Used on the event loop."""

    def __init__(self) -> None:
        self._open: set[RecordConnection] = set()

    def __len__(self) -> int:
        return len(self._open)

    def add(self, connection: RecordConnection) -> None:
        """Counts a connection that was opened."""
        self._open.add(connection)

    def remove(self, connection: RecordConnection) -> None:
        """Removes a connection that has ended."""
        self._open.discard(connection)

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory that this owner writes to, over all connections."""
        return sum(connection.shared_bytes for connection in self._open)
