"""Loads handwritten digits as tensors, splits and shards them, and makes batches."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from examples.digits.idx import IdxError, read_images, read_labels

SIDE = 28
HELD_OUT = 0.2
# Not the run's seed, so that all runs are evaluated on the same digits.
SPLIT_SEED = 28


@dataclass(frozen=True)
class Part:
    """Some digits: images ``[N, 1, 28, 28]`` float32, labels ``[N]`` int64."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, indices: Tensor | slice) -> Part:
        return Part(self.images[indices], self.labels[indices])


@dataclass(frozen=True)
class Digits:
    """A data set: the training digits and the held-out digits."""

    train: Part
    held_out: Part
    name: str
    epochs: int
    """Passes over the training part that reach the accuracy this example promises."""


def load(directory: Path | None = None) -> Digits:
    """Loads the original MNIST files from a directory, or the scans that ship inside scikit-learn.

    Raises:
        IdxError: a file in the directory is missing or damaged.
    """
    return load_small() if directory is None else load_mnist(directory)


def load_small() -> Digits:
    """Loads scikit-learn's 1,797 scans of 8x8 pixels, enlarged to 28x28; a fifth of every digit is held out."""
    # Importing takes a second, and a run on the MNIST files does not need it.
    from sklearn.datasets import load_digits

    scans = load_digits()
    images = torch.from_numpy(scans.images).float().unsqueeze(1) / 16
    images = F.interpolate(images, size=(SIDE, SIDE), mode="bilinear", align_corners=False)
    whole = Part(images, torch.from_numpy(scans.target).long())
    kept, held_out = split(whole.labels)
    return _normalised(whole[kept], whole[held_out], "scikit-learn's handwritten digits", epochs=24)


def load_mnist(directory: Path) -> Digits:
    """Loads the four original MNIST files, plain or gzipped.

    Raises:
        IdxError: a file is missing or damaged, or images and labels do not fit together.
    """
    return _normalised(_mnist(directory, "train"), _mnist(directory, "t10k"), "MNIST", epochs=2)


def split(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Splits digit by digit, the same way every time.

    Args:
        labels: ``[N]`` int64.

    Returns:
        The indices to train on and the indices held out: int64, ascending, disjoint, together all of them.
    """
    generator = torch.Generator().manual_seed(SPLIT_SEED)
    chosen = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique():
        indices = (labels == label).nonzero().flatten()
        order = torch.randperm(len(indices), generator=generator)
        chosen[indices[order[: round(HELD_OUT * len(indices))]]] = True
    return (~chosen).nonzero().flatten(), chosen.nonzero().flatten()


def shard(part: Part, rank: int, trainers: int) -> Part:
    """Returns trainer ``rank``'s own part of the digits; the shards are disjoint and together complete.

    Raises:
        ValueError: the rank is not in ``[0, trainers)``, or there are fewer digits than trainers.
    """
    if not 0 <= rank < trainers:
        raise ValueError(f"rank {rank} is not in [0, {trainers})")
    if len(part) < trainers:
        raise ValueError(f"{len(part)} digits are too few for {trainers} trainers")
    return part[rank::trainers]


def batches(part: Part, size: int, epochs: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields every digit once per epoch, in a new order and slightly distorted each time.

    Args:
        part: the digits of one trainer.
        size: digits per batch; an epoch's last batch may be smaller.
        epochs: number of passes over the digits.
        seed: the same seed gives the same batches.

    Yields:
        Images ``[<=size, 1, 28, 28]`` float32 and labels ``[<=size]`` int64.
    """
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for indices in torch.randperm(len(part), generator=generator).split(size):
            yield bend(part.images[indices], generator), part.labels[indices]


def count_batches(part: Part, size: int, epochs: int) -> int:
    """Returns how many batches :func:`batches` yields."""
    return math.ceil(len(part) / size) * epochs


def bend(images: Tensor, generator: Generator, amount: float = 0.15) -> Tensor:
    """Rotates, scales and shifts each image at random.

    The scikit-learn set is small: without this the network overfits and stops near an accuracy of 0.975.

    Args:
        images: ``[N, 1, H, W]`` float32.
        generator: the source of random numbers.
        amount: the most by which an image is rotated (radians), scaled (part of its size) or shifted
            (part of half its size).

    Returns:
        A new tensor like ``images``.
    """
    angle, scale, right, down = amount * (2 * torch.rand(4, len(images), generator=generator) - 1)
    cosine, sine = (1 + scale) * angle.cos(), (1 + scale) * angle.sin()
    rows = torch.stack([cosine, -sine, right, sine, cosine, down], dim=1).view(-1, 2, 3)
    grid = F.affine_grid(rows, list(images.shape), align_corners=False)
    # grid_sample fills in zeros from outside the image, so the background has to be zero meanwhile.
    paper = images.min()
    return F.grid_sample(images - paper, grid, align_corners=False) + paper


def _mnist(directory: Path, prefix: str) -> Part:
    images = read_images(directory, f"{prefix}-images-idx3-ubyte")
    labels = read_labels(directory, f"{prefix}-labels-idx1-ubyte")
    if images.shape != (len(labels), SIDE, SIDE):
        raise IdxError(f"{directory}: {prefix} has {len(labels)} labels for images of shape {list(images.shape)}")
    if not len(labels) or labels.max() > 9:
        raise IdxError(f"{directory}: the {prefix} labels are not digits")
    return Part(images.unsqueeze(1).float() / 255, labels)


def _normalised(train: Part, held_out: Part, name: str, epochs: int) -> Digits:
    # The held-out part is normalized with the statistics of the training part, so that nothing leaks into training.
    std, mean = torch.std_mean(train.images)
    train, held_out = (Part((part.images - mean) / std, part.labels) for part in (train, held_out))
    return Digits(train, held_out, name, epochs)
