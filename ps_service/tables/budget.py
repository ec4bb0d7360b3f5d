"""The memory that all tables of an owner may take together."""

from __future__ import annotations

from typing import Final
from weakref import finalize

from ps_wire.errors import TooLargeError


class TableBudget:
    """Counts the bytes of tables, and says how many rows may still be added. Safe from several threads, without a lock:
    the limit can be exceeded by the rows of the look-ups that run at the same time. Errors name the owner."""

    def __init__(self, owner: str, limit: int) -> None:
        self.limit: Final = limit
        self.owner: Final = owner
        # By identity. Setting, removing and listing items of a dict are atomic.
        self._bytes_of: dict[int, int] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of all tables."""
        return sum(list(self._bytes_of.values()))

    def watch(self, table: object) -> None:
        """Counts a table until it is freed."""
        if id(table) not in self._bytes_of:
            self._bytes_of[id(table)] = 0
            finalize(table, self._bytes_of.pop, id(table), None).atexit = False

    def note(self, table: object, nbytes: int) -> None:
        """Notes how many bytes a table takes now."""
        self._bytes_of[id(table)] = nbytes

    def room(self, row_bytes: int) -> int:
        """How many rows of so many bytes may be added."""
        return max(0, self.limit - self.nbytes) // row_bytes

    def exceeded(self, table: str) -> TooLargeError:
        """The error for rows of a table, named in the message, that would need more."""
        return TooLargeError(
            f"owner {self.owner!r} has no room for more rows of {table}: its tables take {self.nbytes:,} of the "
            f"{self.limit:,} bytes that they may take. Remove or evict rows, spread the tables over more owners, or "
            "raise max_table_bytes on the owner"
        )
