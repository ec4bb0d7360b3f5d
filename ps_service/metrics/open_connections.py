"""Counts the open shared-memory connections of an owner, for its metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ps_wire.shared_memory.connection import SharedMemoryConnection


class OpenConnections:
    """The shared-memory connections that are open. Used on the event loop."""

    def __init__(self) -> None:
        self._open: set[SharedMemoryConnection] = set()

    def __len__(self) -> int:
        return len(self._open)

    def add(self, connection: SharedMemoryConnection) -> None:
        """Counts a connection that was opened."""
        self._open.add(connection)

    def remove(self, connection: SharedMemoryConnection) -> None:
        """Removes a connection that has ended."""
        self._open.discard(connection)

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory that this owner writes to, over all connections."""
        return sum(connection.shared_bytes for connection in self._open)
