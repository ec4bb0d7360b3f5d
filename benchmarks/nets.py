"""The hosted networks of the steady rows: they get a batch and return logits, and the trainer has the loss."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ps_service import hosted, remote

__all__ = ["LossOfLinears", "Lstm", "Shape", "Transformer", "TwoLinears"]


@dataclass(frozen=True, slots=True)
class Shape:
    """Dimensions of a `Transformer` and its batches.

    Attributes:
        words: Size of the vocabulary.
        width: Features of a word.
        heads: Heads of an attention.
        layers: Number of layers.
        length: Words in a text.
        texts: Texts in a batch.
    """

    words: int
    width: int
    heads: int
    layers: int
    length: int
    texts: int


@hosted
class Transformer(nn.Module):
    """A language model like GPT-2: each word sees those before it, and the output shares the weights of the embedding.

    With two layers it has 28 parameters. There is no dropout, so that losses can be compared.

    Args:
        words: As in `Shape`; so are the others.
        width: Features of a word.
        heads: Heads of an attention.
        layers: Number of layers.
        length: Words in a text.
    """

    def __init__(self, words: int, width: int, heads: int, layers: int, length: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.places = nn.Embedding(length, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, heads, 4 * width, dropout=0.0, activation=F.gelu, batch_first=True, norm_first=True
            )
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length), persistent=False)
        nn.init.normal_(self.words.weight, std=0.02)

    def forward(self, texts: Tensor) -> Tensor:
        x = self.words(texts) + self.places.weight
        for layer in self.layers:
            x = layer(x, src_mask=self.mask, is_causal=True)
        return F.linear(self.norm(x), self.words.weight)


@hosted
class Lstm(nn.Module):
    """A language model with an LSTM.

    Args:
        words: Size of the vocabulary.
        width: Features of a word and of the state.
        layers: Number of layers.
    """

    def __init__(self, words: int, width: int, layers: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.lstm = nn.LSTM(width, width, layers, batch_first=True)
        self.out = nn.Linear(width, words)

    def forward(self, texts: Tensor) -> Tensor:
        return self.out(self.lstm(self.words(texts))[0])


@hosted
class TwoLinears(nn.Module):
    """Two linear layers, which compute for so short a time that what surrounds them is most of a step.

    Args:
        inputs: Features of an input.
        hidden: Features between the layers.
        classes: Number of classes.
    """

    def __init__(self, inputs: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, hidden)
        self.second = nn.Linear(hidden, classes)

    @remote(inline=True)
    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x)))


@hosted
class LossOfLinears(TwoLinears):
    """The same together with its loss, so that a pass sends classes and gets a number."""

    @remote(inline=True)
    def forward(self, x: Tensor, wanted: Tensor) -> Tensor:
        return F.cross_entropy(super().forward(x), wanted)
