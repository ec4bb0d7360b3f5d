"""The handwritten digits of scikit-learn, in batches for each trainer."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import torch
from torch import Tensor

from examples.batched_updates.settings import Settings


@cache
def digits() -> tuple[Tensor, Tensor]:
    """All images, ``[1797, 64]`` float32 from 0 to 1, and their labels, ``[1797]`` int64."""
    # Importing takes a second, and who has the digits from elsewhere does not need it.
    from sklearn.datasets import load_digits

    loaded = load_digits()
    return torch.from_numpy(loaded.data).float() / 16, torch.from_numpy(loaded.target).long()


def big_batches(settings: Settings) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches of all trainers together, one per step: ``[trainers * batch_size, 64]`` float32 and int64 labels."""
    images, labels = digits()
    generator = torch.Generator().manual_seed(settings.seed)
    for _ in range(settings.steps):
        chosen = torch.randint(len(labels), (settings.trainers * settings.batch_size,), generator=generator)
        yield images[chosen], labels[chosen]


def batches(settings: Settings, rank: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The parts of these batches for one trainer: ``[batch_size, 64]`` float32 and int64 labels."""
    for images, labels in big_batches(settings):
        part = slice(rank * settings.batch_size, (rank + 1) * settings.batch_size)
        yield images[part], labels[part]
