"""The dimensions of the work of the rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Sizes:
    """Dimensions of the work.

    Attributes:
        table_rows: Rows of the embedding table.
        dim: Its columns.
        bags: Bags in a batch.
        per_bag: Ids in a bag.
        images: Images in a batch of the ConvNet.
        ratings: Pairs of a user and an item in a batch of the recommender.
        large_width: Features of a word in the large transformer.
        wide: Features of an input, and classes, of the linear layers with ten times its square of parameters.
        batches: Different batches, taken in turn.
    """

    table_rows: int = 1_000_000
    dim: int = 64
    bags: int = 4096
    per_bag: int = 20
    images: int = 32
    ratings: int = 1024
    large_width: int = 512
    wide: int = 1000
    batches: int = 4


FULL: Final = Sizes()
QUICK: Final = Sizes(table_rows=50_000, bags=256, images=8, ratings=64, large_width=32, wide=50)
"""For smoke tests; results with these are meaningless."""
