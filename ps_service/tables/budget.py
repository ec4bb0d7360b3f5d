"""The memory that all tables of an owner may take together."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final
from weakref import finalize

from ps_wire.errors import PsError, TooLargeError


class TableBudget:
    """Counts the bytes of tables, and says how many rows may still be added. Safe from several threads, without a lock:
    the limit can be exceeded by the rows of the look-ups that run at the same time. Errors name the owner. One answer
    has at most `most_answered` bytes."""

    def __init__(self, owner: str, limit: int, most_answered: int = sys.maxsize) -> None:
        self.limit: Final = limit
        self._most_answered: Final = most_answered
        self.owner: Final = owner
        # By identity. Setting, removing and listing items of a dict are atomic.
        self._used_by: dict[int, tuple[int, int]] = {}
        self._spare: dict[int, Callable[[], object]] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of all tables."""
        return sum(nbytes for nbytes, _ in list(self._used_by.values()))

    @property
    def rows(self) -> int:
        """Rows of all tables, with those whose memory is kept for other ids."""
        return sum(rows for _, rows in list(self._used_by.values()))

    def watch(self, table: object) -> None:
        """Counts a table until it is freed."""
        if id(table) not in self._used_by:
            self._used_by[id(table)] = 0, 0
            finalize(table, self._used_by.pop, id(table), None).atexit = False

    def note(self, table: object, nbytes: int, rows: int) -> None:
        """Notes how many bytes a table takes now, and how many rows it has."""
        self._used_by[id(table)] = nbytes, rows

    def spare(self, kept: object, give_up: Callable[[], object]) -> None:
        """Calls a function, in any thread, when rows want the room of something that is kept, unless that was freed."""
        self._spare[id(kept)] = give_up
        finalize(kept, self._spare.pop, id(kept), None).atexit = False

    def room(self, row_bytes: int, wanted: int = 0) -> int:
        """How many rows of so many bytes may be added. If that would be less than `wanted`, what is spare is given
        up."""
        found = self._room(row_bytes)
        return self._room(row_bytes) if found < wanted and self.reclaim() else found

    def reclaim(self) -> bool:
        """Has what is spare given up; says whether there was something."""
        spare = list(self._spare.values())
        for give_up in spare:
            give_up()
        return bool(spare)

    def _room(self, row_bytes: int) -> int:
        return max(0, self.limit - self.nbytes) // row_bytes

    def check_answer(self, nbytes: int) -> None:
        """Raises `TooLargeError` if a look-up would take more bytes than an answer may have."""
        if nbytes > self._most_answered:
            raise TooLargeError(
                f"the rows of a look-up on owner {self.owner!r} would take {nbytes:,} bytes, and an answer has at most "
                f"{self._most_answered:,}. Look up fewer ids at once, or raise max_message_bytes on the owner"
            )

    def exceeded(self, table: str, row_bytes: int) -> PsError:
        """The error for rows of so many bytes of a table, named in the message, that would need more."""
        return TooLargeError(
            f"owner {self.owner!r} has no room for more rows of {table}: its tables, with what snapshots have of them, "
            f"take {self.nbytes:,} of the {self.limit:,} bytes that they may take. Remove or evict rows, remove "
            "snapshots, spread the tables over more owners, or raise max_table_bytes on the owner"
        )
