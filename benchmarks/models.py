"""The hosted classes of the rows, the same on every side."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from examples.digits.net import Net
from ps_service import hosted, remote

__all__ = ["Calls", "Decoder", "EmbeddingTable", "Net"]


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
