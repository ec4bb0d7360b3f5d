"""The networks of the steady rows with their batches, the same on every side."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.data import Batch
from benchmarks.nets import LossOfLinears, Lstm, Shape, Transformer, TwoLinears
from benchmarks.sizes import Sizes

KINDS: Final = ("transformer", "transformer_large", "lstm", "linears", "linears_whole", "linears_10M")
"""The kinds of work that are a network."""

LR: Final = 0.05
"""The learning rate of SGD."""

_SMALL: Final = Shape(words=256, width=64, heads=4, layers=2, length=32, texts=8)
_FEATURES: Final = 64
_CLASSES: Final = 10


@dataclass(frozen=True, slots=True)
class Job:
    """A network to train.

    Attributes:
        cls: Its class.
        args: The arguments of the class.
        batches: Inputs and classes.
    """

    cls: type[nn.Module]
    args: tuple[Any, ...]
    batches: list[Batch]


def job(kind: str, sizes: Sizes) -> Job:
    """The job of a kind of work.

    Raises:
        ValueError: The kind is not that of a network.
    """
    match kind:
        case "transformer":
            return _transformer(_SMALL, sizes)
        case "transformer_large":
            return _transformer(Shape(2000, sizes.large_width, 8, 4, 64, 4), sizes)
        case "lstm":
            return Job(Lstm, (_SMALL.words, _SMALL.width, 2), _texts(_SMALL, sizes))
        case "linears":
            return Job(TwoLinears, (_FEATURES, _FEATURES, _CLASSES), _points(sizes))
        case "linears_whole":
            return Job(LossOfLinears, (_FEATURES, _FEATURES, _CLASSES), _points(sizes))
        case "linears_10M":
            wide = sizes.wide
            return Job(TwoLinears, (wide, 5 * wide, wide), _points(sizes, wide, wide))
    raise ValueError(f"{kind} is no network")


def loss(logits: Tensor, wanted: Tensor) -> Tensor:
    """The cross entropy, whatever the number of dimensions is before the last."""
    return F.cross_entropy(logits.flatten(0, -2), wanted.flatten())


def _transformer(shape: Shape, sizes: Sizes) -> Job:
    return Job(Transformer, astuple(shape)[:5], _texts(shape, sizes))


def _texts(shape: Shape, sizes: Sizes) -> list[Batch]:
    """Texts of random words, and for each word the next one."""
    generator = torch.Generator().manual_seed(6000)
    drawn = torch.randint(shape.words, (sizes.batches, shape.texts, shape.length + 1), generator=generator)
    return [(texts[:, :-1].contiguous(), texts[:, 1:].contiguous()) for texts in drawn]


def _points(sizes: Sizes, features: int = _FEATURES, classes: int = _CLASSES) -> list[Batch]:
    generator = torch.Generator().manual_seed(7000)
    return [
        (
            torch.randn(sizes.images, features, generator=generator),
            torch.randint(classes, (sizes.images,), generator=generator),
        )
        for _ in range(sizes.batches)
    ]
