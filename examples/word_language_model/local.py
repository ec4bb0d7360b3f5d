"""The same model in one process, for comparison."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from examples.word_language_model.model import Decoder, EmbeddingTable, Hidden, RNNModel, make_rnn
from examples.word_language_model.settings import Settings


class LocalSide:
    """A model in this process, and its training step, like ``DistributedSide``.

    Args:
        words: Size of the vocabulary.
        settings: Sizes, learning rate and seed.
    """

    def __init__(self, words: int, settings: Settings) -> None:
        dropout, seed, dtype = settings.dropout, settings.seed, settings.dtype
        embedding = EmbeddingTable(words, settings.embedding, dropout, seed, dtype)
        rnn = make_rnn(settings.embedding, settings.hidden, settings.layers, dropout, seed, dtype)
        decoder = Decoder(words, settings.hidden, dropout, seed, dtype)
        self.model = RNNModel(embedding, rnn, decoder)
        self._parameters = [*embedding.parameters(), *rnn.parameters(), *decoder.parameters()]
        self._opt = torch.optim.SGD(self._parameters, lr=settings.lr)
        self._clip = settings.clip

    def step(self, data: Tensor, target: Tensor, hidden: Hidden) -> tuple[float, Hidden]:
        """Takes one step with a piece of text; see ``DistributedSide.step``."""
        self._opt.zero_grad()
        scores, (memory, cell) = self.model.train()(data, hidden)
        loss = F.cross_entropy(scores.flatten(0, 1), target.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(self._parameters, self._clip)
        self._opt.step()
        return loss.item(), (memory.detach(), cell.detach())

    def set_lr(self, lr: float) -> None:
        """Sets the learning rate."""
        for group in self._opt.param_groups:
            group["lr"] = lr
