"""Batches of bags of rows of a table. All rows of a bag belong to one class, which the model predicts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

EMBEDDINGS = 96
CLASSES = 8


class Batch(NamedTuple):
    """Bags of different sizes, one after the other."""

    indices: Tensor
    """``[20 to 50]`` int64: rows of the table."""
    offsets: Tensor
    """``[bags]`` int64: where each bag begins."""
    targets: Tensor
    """``[bags]`` int64: the class of each bag."""


def batches(seed: int, rank: int, steps: int) -> Iterator[Batch]:
    """The batches of one trainer, which are equal in every process."""
    generator = torch.Generator().manual_seed(seed * 1000 + rank)

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=generator))

    for _ in range(steps):
        size = draw(20, 50)
        starts = [0]
        while (following := starts[-1] + draw(1, 10)) < size:
            starts.append(following)
        offsets = torch.tensor(starts)
        targets = torch.randint(CLASSES, (len(starts),), generator=generator)
        # The class of a row is the remainder of its division by the number of classes.
        sizes = torch.diff(offsets, append=torch.tensor([size]))
        rounds = torch.randint(EMBEDDINGS // CLASSES, (size,), generator=generator)
        yield Batch(rounds * CLASSES + targets.repeat_interleave(sizes), offsets, targets)
