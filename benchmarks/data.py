"""The batches of the rows, with the same values on every side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.models import Ratings
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
WEIGHTS_LR: Final = 0.01
ADAGRAD: Final = {"lr": 0.01, "initial_accumulator_value": 1e-6}
"""Options of the recommender's optimizer. With an accumulator of 0, its first step would be the sign of a gradient."""

PROBE: Final = 2048
"""Number of rows of the table that are compared at the end."""

Batch = tuple[Tensor, Tensor]


TABLE_EXPONENT: Final = 1.2
"""The exponent of Zipf's law for the ids of `table_step_zipf`."""

TABLE_LR: Final = 0.005
"""The learning rate of that row: the most frequent id has a fifth of all places."""

TABLES: Final = 26
"""Tables of `tables_26`, as many as the categorical features of Criteo's data."""

SMALL_BAG: Final = 3
"""Ids in a bag of that row."""

GROW_DIM: Final = 16
"""Width of the rows of `table_grow`."""


def bags(sizes: Sizes, rank: int = 0, trainers: int = 1, zipf: bool = False) -> list[Batch]:
    """Batches of bags of ids, and their target sums.

    Each trainer uses its own part of the table's rows. So the result of all steps does not depend on their order, and
    can be compared with local torch. With `zipf`, the frequency of an id is about the inverse of its place in the part.
    """
    generator = torch.Generator().manual_seed(1000 + rank)
    part = sizes.table_rows // trainers
    shape = (sizes.bags, sizes.per_bag)
    return [
        (
            rank * part + _ids(part, shape, zipf, generator),
            torch.randn(sizes.bags, sizes.dim, generator=generator),
        )
        for _ in range(sizes.batches)
    ]


def _ids(rows: int, shape: tuple[int, int], zipf: bool, generator: torch.Generator) -> Tensor:
    if zipf:
        return (rows ** torch.rand(shape, dtype=torch.float64, generator=generator)).long() - 1
    return torch.randint(rows, shape, generator=generator)


def table_bags(sizes: Sizes, zipf: bool = True) -> list[Batch]:
    """Batches of bags of ids, and their target sums.

    With `zipf`, the frequency of an id is its place to the power of -1.2; otherwise all are equally frequent.
    """
    if not zipf:
        return bags(sizes)
    generator = torch.Generator().manual_seed(1000)
    places = torch.arange(1, sizes.table_rows + 1, dtype=torch.float64)
    chances = places.pow(-TABLE_EXPONENT).cumsum(0)
    shape, batches = (sizes.bags, sizes.per_bag), []
    for _ in range(sizes.batches):
        drawn = torch.rand(shape, dtype=torch.float64, generator=generator) * chances[-1]
        ids = torch.searchsorted(chances, drawn).clamp_(max=sizes.table_rows - 1)
        batches.append((ids, torch.randn(sizes.bags, sizes.dim, generator=generator)))
    return batches


def many_bags(sizes: Sizes, tables: int) -> list[Batch]:
    """Batches of bags of ids of several tables, [tables, bags, size], and their target sums, [tables * bags, dim].

    The ids are the same for one table as for `TABLES`, and count on from one table to the next.
    """
    generator = torch.Generator().manual_seed(4000)
    rows, samples = rows_of_each(sizes), sizes.bags // 4
    batches = []
    for _ in range(sizes.batches):
        ids = torch.randint(rows, (TABLES, samples, SMALL_BAG), generator=generator)
        if tables == 1:
            ids = (ids + torch.arange(TABLES)[:, None, None] * rows).view(1, TABLES * samples, SMALL_BAG)
        batches.append((ids, torch.randn(TABLES * samples, sizes.dim, generator=generator)))
    return batches


def rows_of_each(sizes: Sizes, tables: int = TABLES) -> int:
    """Rows of each table: all have as many together, however many there are."""
    return sizes.table_rows // TABLES * (TABLES // tables)


def probe_of_many(batches: list[Batch]) -> Tensor:
    """Bags of a single id of the first table, [1, bags, 1]."""
    return batches[0][0][:1].flatten()[:PROBE].view(1, -1, 1)


def new_ids(sizes: Sizes, number: int) -> Tensor:
    """Ids that no other number has, in an order without a pattern: int64, as many as a batch of bags has."""
    count = sizes.bags * sizes.per_bag
    # An odd factor is a bijection of 64-bit numbers.
    return torch.arange(number * count, (number + 1) * count) * 0x1E3779B97F4A7C15


def emb_lr(zipf: bool) -> float:
    """The learning rate of an embedding table. Frequent ids get the sum of many gradients."""
    return EMB_LR / 10 if zipf else EMB_LR


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


@dataclass(frozen=True, slots=True)
class Recommender:
    """Dimensions of the recommender, NeuMF with as many users and items as MovieLens-1M has."""

    users: int = 6040
    items: int = 3706
    width: int = 48
    factors: int = 16
    hidden: tuple[int, ...] = (64, 32, 16)


RECOMMENDER: Final = Recommender()


Part = tuple[Any, ...]


def recommender_parts(sparse: bool) -> dict[str, Part]:
    """Classes and arguments of the recommender's three modules. Each is seeded with a number of its own, in order.

    With `sparse`, the tables have sparse gradients.
    """
    dims = RECOMMENDER
    # The arguments that stand between a table's width and `sparse`, with their defaults.
    rest = (None, None, 2.0, False, sparse)
    return {
        "user_table": (nn.Embedding, dims.users, dims.width, *rest),
        "item_table": (nn.Embedding, dims.items, dims.width, *rest),
        "head": (Ratings, dims.factors, dims.hidden),
    }


def rating_loss(scores: Tensor, liked: Tensor) -> Tensor:
    """The loss of the recommender."""
    return F.binary_cross_entropy_with_logits(scores, liked)


def ratings(sizes: Sizes, rank: int = 0) -> list[Batch]:
    """Batches of users and items, of shape (2, ratings), and whether each user liked the item, as 0.0 or 1.0."""
    generator = torch.Generator().manual_seed(4000 + rank)
    count = sizes.ratings
    return [
        (
            torch.stack(
                [
                    torch.randint(RECOMMENDER.users, (count,), generator=generator),
                    torch.randint(RECOMMENDER.items, (count,), generator=generator),
                ]
            ),
            torch.randint(2, (count,), generator=generator).float(),
        )
        for _ in range(sizes.batches)
    ]


def vectors(numel: int, sizes: Sizes, rank: int = 0) -> list[Batch]:
    """Inputs of `Weights` for one trainer, of shape (10, numel // 10); the second of each pair is not used."""
    generator = torch.Generator().manual_seed(5000 + rank)
    scale = numel**-0.5
    return [(torch.randn(10, numel // 10, generator=generator) * scale, torch.empty(0)) for _ in range(sizes.batches)]


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
