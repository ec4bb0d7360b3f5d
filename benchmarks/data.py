"""The batches of the rows, with the same values on every side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.sizes import Sizes

MODEL_SEED: Final = 11
"""Seeds the constructors; a second object takes the next number."""
OWNER_SEED: Final = 21
"""Seeds the owner before the first step, for its dropout."""
TRAINER_SEED: Final = 31
"""Seeds the trainer before the first step, for local dropout."""

EMB_LR: Final = 1.0
CONVNET_LR: Final = 0.03
RNN_LR: Final = 0.05

PROBE: Final = 2048
"""Number of rows of the table that are compared at the end."""

Batch = tuple[Tensor, Tensor]


def bags(sizes: Sizes, rank: int = 0, trainers: int = 1) -> list[Batch]:
    """Batches of bags of ids, and their target sums.

    Each trainer uses its own part of the table's rows. So the result of all steps does not depend on their order, and
    can be compared with local torch.
    """
    generator = torch.Generator().manual_seed(1000 + rank)
    part = sizes.table_rows // trainers
    shape = (sizes.bags, sizes.per_bag)
    return [
        (
            torch.randint(rank * part, (rank + 1) * part, shape, generator=generator),
            torch.randn(sizes.bags, sizes.dim, generator=generator),
        )
        for _ in range(sizes.batches)
    ]


def bag_loss(sums: Tensor, wanted: Tensor) -> Tensor:
    """The squared error per bag. Unlike that of a sum, its gradient depends on the parameters."""
    return F.mse_loss(sums, wanted, reduction="sum") / len(sums)


def probe_ids(batches: list[Batch]) -> Tensor:
    """Bags of a single id, for which an EmbeddingBag returns rows of its table, bit by bit."""
    return batches[0][0].flatten()[:PROBE].unsqueeze(1)


def images(sizes: Sizes) -> list[Batch]:
    """Batches of images and their classes."""
    generator = torch.Generator().manual_seed(2000)
    return [
        (
            torch.randn(sizes.images, 1, 28, 28, generator=generator),
            torch.randint(10, (sizes.images,), generator=generator),
        )
        for _ in range(sizes.batches)
    ]


@dataclass(frozen=True, slots=True)
class Rnn:
    """Dimensions of the tutorial's RNN."""

    batch: int = 5
    ntoken: int = 10
    ninp: int = 2
    nhid: int = 3
    nindices: int = 3
    nlayers: int = 4
    dropout: float = 0.5


RNN: Final = Rnn()


def sentences(sizes: Sizes) -> list[Batch]:
    """Batches of words and their targets."""
    generator = torch.Generator().manual_seed(3000)
    return [
        (
            torch.randint(RNN.ntoken, (RNN.batch, RNN.nindices), generator=generator),
            torch.randint(RNN.nindices, (RNN.batch, RNN.ntoken), generator=generator),
        )
        for _ in range(sizes.batches)
    ]


def split(ids: Tensor, first: int) -> list[tuple[Tensor, Tensor]]:
    """Splits bags over two tables, of which the first holds the rows below `first`.

    Returns:
        For each table: its ids, counted from its own first row, and the offsets of the bags.
    """
    low = ids < first
    parts = []
    for mask, base in ((low, 0), (~low, first)):
        ends = mask.sum(1).cumsum(0)
        offsets = torch.zeros_like(ends)
        offsets[1:] = ends[:-1]
        parts.append((ids[mask] - base, offsets))
    return parts


Hidden = tuple[Tensor, Tensor]


def lstm() -> tuple[nn.LSTM, Hidden]:
    """The local part of the RNN and its initial state; torch has to be seeded before."""
    made = nn.LSTM(RNN.ninp, RNN.nhid, RNN.nlayers, dropout=RNN.dropout)
    shape = (RNN.nlayers, RNN.nindices, RNN.nhid)
    return made, (torch.randn(shape), torch.randn(shape))


def detached(hidden: Hidden) -> Hidden:
    """The state for the next pass, without its history."""
    return hidden[0].detach(), hidden[1].detach()
