"""The model of the tutorial: an embedding table, an LSTM, and a decoder."""

from __future__ import annotations

from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn

from ps_service import hosted

Hidden = tuple[Tensor, Tensor]
"""State of the LSTM: twice ``[layers, columns, hidden]``."""

SPREAD = 0.1
"""Weights of both hosted modules begin between minus this and this."""


@hosted
class EmbeddingTable(nn.Module):
    """A vector for each word.

    Args:
        words: Size of the vocabulary.
        size: Size of a vector.
        dropout: The share of numbers that is dropped in training.
        seed: Makes the same table wherever it is made.
        dtype: Of the vectors.
    """

    def __init__(self, words: int, size: int, dropout: float, seed: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.drop = nn.Dropout(dropout)
        self.encoder = nn.Embedding(words, size, dtype=dtype)
        _spread(self.encoder.weight, seed)

    def forward(self, data: Tensor) -> Tensor:
        """Looks words up: ``[rows, columns]`` int64 to ``[rows, columns, size]``."""
        return self.drop(self.encoder(data))


@hosted
class Decoder(nn.Module):
    """Says what the next word may be.

    Args:
        words: Size of the vocabulary.
        size: Size of the LSTM's output.
        dropout: The share of numbers that is dropped in training.
        seed: Makes the same decoder wherever it is made.
        dtype: Of the weights.
    """

    def __init__(self, words: int, size: int, dropout: float, seed: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.drop = nn.Dropout(dropout)
        self.decoder = nn.Linear(size, words, dtype=dtype)
        _spread(self.decoder.weight, seed)
        nn.init.zeros_(self.decoder.bias)

    def forward(self, output: Tensor) -> Tensor:
        """Scores all words: ``[rows, columns, size]`` to ``[rows, columns, words]``."""
        return self.decoder(self.drop(output))


class Part(Protocol):
    """A module, here or elsewhere."""

    def __call__(self, value: Tensor) -> Tensor:
        """Runs it."""

    def train(self, mode: bool = True) -> Any:
        """Sets the mode in which it runs."""


class RNNModel:
    """The three parts in a row, wherever they are.

    Args:
        embedding: An :class:`EmbeddingTable`, or a ``RemoteModule`` of one.
        rnn: The LSTM, which is always here.
        decoder: A :class:`Decoder`, or a ``RemoteModule`` of one.
    """

    def __init__(self, embedding: Part, rnn: nn.LSTM, decoder: Part) -> None:
        self.embedding = embedding
        self.rnn = rnn
        self.decoder = decoder

    def __call__(self, data: Tensor, hidden: Hidden) -> tuple[Tensor, Hidden]:
        """Scores the words that may follow.

        Args:
            data: Words, ``[rows, columns]`` int64.
            hidden: What the LSTM remembers of the rows before.

        Returns:
            Scores, ``[rows, columns, words]``, and what the LSTM remembers now.
        """
        output, hidden = self.rnn(self.embedding(data), hidden)
        return self.decoder(output), hidden

    def train(self, mode: bool = True) -> Self:
        """Sets the mode of all parts: whether they drop numbers."""
        for part in (self.embedding, self.rnn, self.decoder):
            part.train(mode)
        return self

    def nothing_read(self, columns: int) -> Hidden:
        """What the LSTM remembers before the first word."""
        shape = (self.rnn.num_layers, columns, self.rnn.hidden_size)
        dtype = self.rnn.weight_ih_l0.dtype
        return torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=dtype)


def make_rnn(size: int, hidden: int, layers: int, dropout: float, seed: int, dtype: torch.dtype) -> nn.LSTM:
    """An LSTM that is the same for the same seed; torch's generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.LSTM(size, hidden, layers, dropout=dropout if layers > 1 else 0.0, dtype=dtype)


def _spread(weight: Tensor, seed: int) -> None:
    nn.init.uniform_(weight, -SPREAD, SPREAD, generator=torch.Generator().manual_seed(seed))
