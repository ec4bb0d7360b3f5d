"""The handwritten digits of scikit-learn: a part for training, in batches for each trainer, and a part for testing."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from examples.mpi_ps.settings import Settings


class Digits(NamedTuple):
    """Images, ``[n, 64]`` float32 from 0 to 1, and their labels, ``[n]`` int64."""

    images: Tensor
    labels: Tensor


@cache
def digits() -> tuple[Digits, Digits]:
    """The digits for training and those for testing: four fifths and one fifth, in a fixed random order."""
    # Importing takes a second, and who has the digits from elsewhere does not need it.
    from sklearn.datasets import load_digits

    loaded = load_digits()
    images, labels = torch.from_numpy(loaded.data).float() / 16, torch.from_numpy(loaded.target).long()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    cut = len(labels) * 4 // 5
    return tuple(Digits(images[part], labels[part]) for part in (order[:cut], order[cut:]))  # type: ignore[return-value]


def big_batches(settings: Settings) -> Iterator[Digits]:
    """The batches of all trainers together, one for each step."""
    train, _ = digits()
    generator = torch.Generator().manual_seed(settings.seed)
    for _ in range(settings.steps):
        chosen = torch.randint(len(train.labels), (settings.trainers * settings.batch_size,), generator=generator)
        yield Digits(train.images[chosen], train.labels[chosen])


def batches(settings: Settings, rank: int) -> Iterator[Digits]:
    """The parts of these batches for one trainer."""
    part = slice(rank * settings.batch_size, (rank + 1) * settings.batch_size)
    for images, labels in big_batches(settings):
        yield Digits(images[part], labels[part])
