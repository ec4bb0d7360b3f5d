"""An owner's rows of a table as they were at one moment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
from torch.nn.functional import embedding_bag

from ps_service.tables.answers import PIECE_BYTES, check_begin, ids_to_read, plain, sent
from ps_service.tables.pinned_rows import PinnedRows
from ps_wire.tables.routing import slots_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ps_service.tables.reading import ReadTable
    from ps_wire.tables.queries import Asked


class PinnedPart:
    """The rows of the slots that the owner had then. What the optimizer keeps of rows is not in it. `elements` and
    `nbytes` are as those of `Pinned`."""

    def __init__(self, table: ReadTable, settings: Mapping[str, Any]) -> None:
        self._shard: Final = table.shard
        self._settings: Final = settings
        with table.shard.lock:
            self._slots: Final = table.routing.slots(table.owner)
            self._may_have_others: Final = table.may_have_others
            self._rows: Final = PinnedRows(table.shard)
        self.elements: Final = self._rows.count * table.shard.dim

    @property
    def nbytes(self) -> int:
        """See the class."""
        return self._rows.nbytes

    @property
    def table_nbytes(self) -> int:
        """Bytes of the table, whose memory stays also when it is deleted."""
        return self._shard.memory

    def describe(self) -> dict[str, Any]:
        """As `PinnedTable.describe`."""
        version = plain(self._rows.version)
        return {"settings": self._settings, "slots": self._slots, "version": version}

    def count(self) -> int:
        """Number of rows."""
        if not self._may_have_others:
            return self._rows.count
        found, begin = 0, 0
        while begin is not None:
            block, begin = self.read_block(begin, None)  # type: ignore[assignment]
            found += len(block["ids"])
        return found

    def read(self, ids: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """As `PinnedTable.read`."""
        checked = ids_to_read(self._shard, ids)
        values, there = self._rows.read(checked)
        if self._may_have_others:
            own = self._slots[slots_of(checked)]
            return values[own[there]], there & own
        return values, there

    @property
    def has_all(self) -> bool:
        """Whether the owner had all rows of the table."""
        return bool(self._slots.all())

    def look_up(self, asked: Asked) -> torch.Tensor:
        """The rows that a look-up outside of a pass asks for, or the sums of bags, float32, in a part that has all."""
        values = self._rows.look_up(asked.ids)
        if asked.offsets is None:
            return values
        positions, weights = torch.arange(len(values), device="cpu"), asked.weights
        weights = None if weights is None else weights.detach().float()
        return embedding_bag(positions, values.float(), asked.offsets, mode="sum", per_sample_weights=weights)

    def read_block(self, begin: Any, codec: Any) -> tuple[dict[str, Any], int | None]:
        """As `PinnedTable.read_block`."""
        check_begin(begin)
        block, following = self._rows.block(begin, max(1, PIECE_BYTES // self._shard.row_bytes))
        if self._may_have_others:
            own = self._slots[slots_of(block["ids"])]
            block = {name: each[own] for name, each in block.items()}
        return sent(block, False, codec), following
