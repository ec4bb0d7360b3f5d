"""The hosted classes of the rows, the same on every side."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from examples.digits.net import Net
from ps_service import hosted, remote

__all__ = [
    "Calls",
    "ChannelsLastNet",
    "Decoder",
    "EmbeddingTable",
    "LossOfBags",
    "Net",
    "NeuMF",
    "Ratings",
    "Scale",
    "Weights",
]


@hosted
class Calls:
    """Methods that do almost nothing, to measure the cost of a call."""

    @remote(inline=True)
    def nothing(self) -> None:
        """The empty call."""

    @remote(inline=True)
    def echo(self, payload: Tensor) -> Tensor:
        """Sends a tensor back."""
        return payload

    @remote(inline=True)
    def increment(self, number: int) -> int:
        """A small call whose result can be checked."""
        return number + 1

    @remote
    def seed(self, seed: int) -> None:
        """Seeds this process, so that its dropout can be repeated elsewhere."""
        torch.manual_seed(seed)


@hosted
class ChannelsLastNet(Net):
    """The ConvNet with the channels of a pixel side by side in memory: torch's pooling is faster then.

    The features are flattened as they lie, with the channels last, so that they need not be copied.
    """

    def __init__(self) -> None:
        super().__init__()
        self.to(memory_format=torch.channels_last)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv1(x))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = self.dropout1(x).permute(0, 2, 3, 1).flatten(1)
        x = self.dropout2(F.relu(self.fc1(x)))
        return F.log_softmax(self.fc2(x), dim=1)


class ZeroBags(nn.EmbeddingBag):
    """Sums of bags of rows that begin with 0, as those of the table that they are compared with."""

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)


class ManyBags(nn.Module):
    """Several such tables, which are looked up together.

    Args:
        tables: Number of tables.
        rows: Rows of each.
        dim: Their width.
    """

    def __init__(self, tables: int, rows: int, dim: int) -> None:
        super().__init__()
        self.bags = nn.ModuleList(ZeroBags(rows, dim, mode="sum", sparse=True) for _ in range(tables))

    def forward(self, ids: Tensor) -> Tensor:
        """The sums of bags of ids, [tables, bags, size], one table after the other."""
        return torch.cat([bags(each) for bags, each in zip(self.bags, ids, strict=False)])


@hosted
class EmbeddingTable(nn.Module):
    """The encoder of the tutorial's RNN.

    Args:
        ntoken: Words.
        ninp: Length of a word's vector.
        dropout: Share of the features that is dropped.
    """

    def __init__(self, ntoken: int, ninp: int, dropout: float) -> None:
        super().__init__()
        self.drop = nn.Dropout(dropout)
        self.encoder = nn.Embedding(ntoken, ninp)
        self.encoder.weight.data.uniform_(-0.1, 0.1)

    @remote(inline=True)
    def forward(self, words: Tensor) -> Tensor:
        return self.drop(self.encoder(words))


@hosted
class Decoder(nn.Module):
    """The decoder of the tutorial's RNN.

    Args:
        ntoken: Words.
        nhid: Length of the LSTM's output.
        dropout: Share of the features that is dropped.
    """

    def __init__(self, ntoken: int, nhid: int, dropout: float) -> None:
        super().__init__()
        self.drop = nn.Dropout(dropout)
        self.decoder = nn.Linear(nhid, ntoken)
        self.decoder.bias.data.zero_()
        self.decoder.weight.data.uniform_(-0.1, 0.1)

    @remote(inline=True)
    def forward(self, output: Tensor) -> Tensor:
        return self.decoder(self.drop(output))


@hosted
class Ratings(nn.Module):
    """The head of NeuMF: factors of users and items are multiplied, and their other features go through an MLP.

    Args:
        factors: Features that are multiplied; the others go through the MLP.
        hidden: Widths of the MLP, its input included.
    """

    def __init__(self, factors: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.factors = factors
        layers = [[nn.Linear(before, after), nn.ReLU()] for before, after in pairwise(hidden)]
        self.mlp = nn.Sequential(*(part for layer in layers for part in layer))
        self.score = nn.Linear(factors + hidden[-1], 1)

    @remote(inline=True)
    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        product = users[:, : self.factors] * items[:, : self.factors]
        deep = self.mlp(torch.cat([users[:, self.factors :], items[:, self.factors :]], 1))
        return self.score(torch.cat([product, deep], 1)).squeeze(1)


@hosted
class NeuMF(nn.Module):
    """The whole recommender in one module: two embedding tables and their head.

    Args:
        users: Number of users.
        items: Number of items.
        width: Features of a user, and of an item.
        factors: As for `Ratings`.
        hidden: As for `Ratings`.
        sparse: Whether the tables have sparse gradients.
    """

    def __init__(
        self, users: int, items: int, width: int, factors: int, hidden: Sequence[int], sparse: bool = False
    ) -> None:
        super().__init__()
        self.users = nn.Embedding(users, width, sparse=sparse)
        self.items = nn.Embedding(items, width, sparse=sparse)
        self.head = Ratings(factors, hidden)

    @remote(inline=True)
    def forward(self, pairs: Tensor) -> Tensor:
        return self.head(self.users(pairs[0]), self.items(pairs[1]))


@hosted
class Scale(nn.Module):
    """Multiplies each column by a parameter: many bytes and little work.

    Args:
        columns: Number of columns.
    """

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(columns))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


@hosted
class Weights(nn.Module):
    """Ten vectors. The gradient of their products with an input is the input: many bytes and little work.

    Args:
        numel: Elements of all of them together.
    """

    def __init__(self, numel: int) -> None:
        super().__init__()
        self.parts = nn.ParameterList(torch.randn(numel // 10) for _ in range(10))

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([part.dot(each) for part, each in zip(self.parts, x, strict=True)]).sum()


@hosted
class LossOfBags(nn.Module):
    """An embedding table of sums together with its loss, so that a pass sends targets and gets a number.

    Args:
        rows: Rows of the table.
        dim: Its columns.
    """

    def __init__(self, rows: int, dim: int) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(rows, dim, mode="sum", sparse=True)

    def forward(self, ids: Tensor, wanted: Tensor) -> Tensor:
        return F.mse_loss(self.table(ids), wanted, reduction="sum") / len(ids)

    @remote
    def sums(self, ids: Tensor) -> Tensor:
        """The sums alone."""
        return self.table(ids)
