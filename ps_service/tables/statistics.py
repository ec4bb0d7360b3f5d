"""What a table counts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Statistics:
    """Numbers since the shard was made. Ids count as often as they are given.

    Attributes:
        looked_up: Ids that were looked up.
        added: Rows that came into being.
        refused: Ids that were looked up and have no row: they were not admitted, or the look-up adds none.
        evicted: Rows that were removed to make room.
        expired: Rows that were removed because nobody had looked them up for long.
        removed: Rows that were removed by `remove`.
        gradients: Ids for which there were gradients.
        updated: Rows that these updated.
        late: Rows that had gone when a gradient for them was to be applied.
    """

    looked_up: int = 0
    added: int = 0
    refused: int = 0
    evicted: int = 0
    expired: int = 0
    removed: int = 0
    gradients: int = 0
    updated: int = 0
    late: int = 0

    @property
    def hit_rate(self) -> float:
        """The part of the ids looked up that had a row already."""
        return (self.looked_up - self.added - self.refused) / self.looked_up if self.looked_up else 0.0

    @property
    def unique_ratio(self) -> float:
        """Different ids for each id with a gradient: small where merging them saves much."""
        return self.updated / self.gradients if self.gradients else 0.0
