"""What a table counts."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final


@dataclass(slots=True)
class Statistics:
    """Numbers since the shard was made. Ids count as often as they come, and trainers ask for the row of an id once.

    Attributes:
        looked_up: Ids that were looked up: those of a look-up of rows once, those of bags as often as they are there.
        added: Rows that came into being because their ids were looked up, or had a gradient.
        refused: Ids that training has looked up and that were not admitted.
        missing: Ids without a row that were only read.
        loaded: Rows that came into being because they were put or loaded.
        evicted: Rows that were removed to make room.
        expired: Rows that were removed because nobody had looked them up for long.
        removed: Rows that were removed by `remove` or `clear`.
        gradients: Ids for which there were gradients, as often as programs have given them.
        updated: Rows that these updated.
        late: Rows that had gone when a gradient for them was to be applied.
    """

    looked_up: int = 0
    added: int = 0
    refused: int = 0
    missing: int = 0
    loaded: int = 0
    evicted: int = 0
    expired: int = 0
    removed: int = 0
    gradients: int = 0
    updated: int = 0
    late: int = 0

    @property
    def hits(self) -> int:
        """Ids looked up that had a row already."""
        return max(self.looked_up - self.added - self.refused - self.missing, 0)


COUNTED: Final = tuple(field.name for field in fields(Statistics))
"""What is counted, by name."""
