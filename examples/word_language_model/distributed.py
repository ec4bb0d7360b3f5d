"""The distributed model: embedding table and decoder on the member `ps`, the LSTM here, one optimizer over all."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.profiler import record_function

from examples.word_language_model.model import Decoder, EmbeddingTable, Hidden, RNNModel, make_rnn
from examples.word_language_model.settings import Settings
from trainer_client import autograd, rpc
from trainer_client.nn import RemoteModule
from trainer_client.optim import DistributedOptimizer, clip_grad_norm_


class DistributedSide:
    """A model in two processes, and its training step.

    Args:
        ps: The member that has the embedding table and the decoder.
        words: Size of the vocabulary.
        settings: Sizes, learning rate and seed.
    """

    def __init__(self, ps: str, words: int, settings: Settings) -> None:
        dropout, seed, dtype = settings.dropout, settings.seed, settings.dtype
        embedding = RemoteModule(ps, EmbeddingTable, (words, settings.embedding, dropout, seed, dtype))
        rnn = make_rnn(settings.embedding, settings.hidden, settings.layers, dropout, seed, dtype)
        decoder = RemoteModule(ps, Decoder, (words, settings.hidden, dropout, seed, dtype))
        self.model = RNNModel(embedding, rnn, decoder)
        parameters = [
            *embedding.remote_parameters(),
            *map(rpc.RRef, rnn.parameters()),
            *decoder.remote_parameters(),
        ]
        self._opt = DistributedOptimizer(torch.optim.SGD, parameters, lr=settings.lr)
        self._parameters = parameters
        self._clip = settings.clip

    def step(self, data: Tensor, target: Tensor, hidden: Hidden) -> tuple[float, Hidden]:
        """Takes one step with a piece of text.

        Args:
            data: Words, ``[rows, columns]`` int64.
            target: The words that follow, of the same shape.
            hidden: The hidden state of the LSTM; gradients do not propagate beyond it.

        Returns:
            The loss per word before the step, and the new hidden state.
        """
        with autograd.context() as context_id:
            with record_function("forward"):
                scores, (memory, cell) = self.model.train()(data, hidden)
                loss = F.cross_entropy(scores.flatten(0, 1), target.flatten())
            with record_function("backward"):
                autograd.backward(context_id, [loss])
            with record_function("clip"):
                clip_grad_norm_(context_id, self._parameters, self._clip)
            with record_function("step"):
                self._opt.step(context_id)
        return loss.item(), (memory.detach(), cell.detach())

    def set_lr(self, lr: float) -> None:
        """Sets the learning rate here and on the owner."""
        self._opt.unwrapped.set_options(lr=lr).wait()
