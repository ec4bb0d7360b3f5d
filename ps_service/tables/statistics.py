"""What a shard counts for metrics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Statistics:
    """Numbers since the shard was made. Ids count as often as they come, and trainers ask for the row of an id once."""

    looked_up: int = 0  # ids: those of a look-up of rows once, those of bags as often as they are there
    added: int = 0  # rows that came into being because their ids were looked up, or had a gradient
    refused: int = 0  # ids that training has looked up and that were not admitted
    missing: int = 0  # ids without a row that were only read
    loaded: int = 0  # rows that came into being because they were put or loaded
    evicted: int = 0  # rows that were removed to make room
    expired: int = 0  # rows that were removed because nobody had looked them up for long
    removed: int = 0  # rows that were removed by `remove` or `clear`
    gradients: int = 0  # ids for which there were gradients, as often as programs have given them
    updated: int = 0  # rows that these updated
    late: int = 0  # rows that had gone when a gradient for them was to be applied

    @property
    def hits(self) -> int:
        """Ids looked up that had a row already."""
        return max(self.looked_up - self.added - self.refused - self.missing, 0)
