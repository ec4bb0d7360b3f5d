"""An owner's rows of a table as they were at one moment, as a hosted object."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ps_service.hosting.pinned import Pinned
from ps_wire.decorators import remote

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from ps_service.hosting.pinned import SnapshotMark
    from ps_service.tables.pinned_part import PinnedPart


class PinnedTable(Pinned):
    """What a snapshot has of a table on this owner. `is_there` says whether the owner still has the table."""

    def __init__(self, snapshot: SnapshotMark, rows: PinnedPart, is_there: Callable[[], bool]) -> None:
        super().__init__(snapshot)
        self._rows: Final = rows
        self._is_there: Final = is_there
        self.elements = rows.elements

    @property
    def nbytes(self) -> int:
        """As `Pinned.nbytes`."""
        return self._rows.nbytes + (0 if self._is_there() else self._rows.table_nbytes)

    @remote(role="reader")
    def describe(self) -> dict[str, Any]:
        """What the table was made with, the slots of this owner, bool [SLOTS], the version of its rows, and the bytes
        of those that were copied since; of all, if the table was deleted."""
        return {**self._rows.describe(), "bytes": self.nbytes}

    @remote(role="reader")
    def count(self) -> int:
        """Number of rows."""
        return self._rows.count()

    @remote(role="reader")
    def read(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The rows of those ids, int64 or int32 [n], that had one, [m, dim], and which did, bool [n]."""
        return self._rows.read(ids)

    @remote(role="bulk")
    def read_block(self, begin: int, codec: Any = None) -> tuple[dict[str, Any], int | None]:
        """Some rows by `ids` and `values`, encoded by a codec, and where to go on; None at the end. Arguments as for
        `ReadTable.read_block`."""
        return self._rows.read_block(begin, codec)
