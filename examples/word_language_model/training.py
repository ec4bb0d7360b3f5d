"""Trains for some epochs, and computes the perplexity of the held-out text."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

import trainer_client as tc
from examples.word_language_model.corpus import Corpus, chunks, columns
from examples.word_language_model.model import Hidden, RNNModel
from examples.word_language_model.settings import Settings

HELD_OUT_COLUMNS = 10
ANNEALING = 4.0
"""By how much the learning rate is divided after an epoch that brought nothing."""


class Side(Protocol):
    """A model and how it is trained."""

    model: RNNModel

    def step(self, data: Tensor, target: Tensor, hidden: Hidden) -> tuple[float, Hidden]:
        """Learns one piece of text; gives the loss before it and what the LSTM remembers."""

    def set_lr(self, lr: float) -> None:
        """Changes the learning rate."""


@dataclass(frozen=True)
class Epoch:
    """What one pass over the text came to.

    Attributes:
        number: From 1; 0 is the model as it began.
        lr: The learning rate.
        train_perplexity: Over the words learnt, while they were learnt; None for the model as it began.
        held_out_perplexity: Over the words held out, afterwards.
        steps: Steps taken in this epoch.
        seconds: What these steps took.
        losses: The loss of each step.
    """

    number: int
    lr: float
    train_perplexity: float | None
    held_out_perplexity: float
    steps: int
    seconds: float
    losses: tuple[float, ...] = ()


def train(side: Side, corpus: Corpus, settings: Settings) -> Iterator[Epoch]:
    """Trains and yields the figures of each epoch, those of the untrained model first.

    Args:
        side: The model.
        corpus: The text.
        settings: Epochs, learning rate and sizes of the pieces.
    """
    pieces = chunks(columns(corpus.train, settings.batch_size), settings.bptt)
    held_out = chunks(columns(corpus.held_out, HELD_OUT_COLUMNS), settings.bptt)
    lr, best = settings.lr, perplexity(side.model, held_out)
    yield Epoch(0, lr, None, best, 0, 0.0)
    for number in range(1, settings.epochs + 1):
        began = time.perf_counter()
        learnt, losses = _pass(side, pieces, number)
        seconds = time.perf_counter() - began
        now = perplexity(side.model, held_out)
        yield Epoch(number, lr, learnt, now, len(pieces), seconds, losses)
        if now >= best:
            lr /= ANNEALING
            side.set_lr(lr)
        best = min(best, now)


def perplexity(model: RNNModel, pieces: list[tuple[Tensor, Tensor]]) -> float:
    """How many words the model hesitates between, on average, when it reads pieces of text.

    Args:
        model: The model; nothing is dropped.
        pieces: As :func:`examples.word_language_model.corpus.chunks` gives them.
    """
    model.train(False)
    hidden = model.nothing_read(pieces[0][0].shape[1])
    total, words = 0.0, 0
    with torch.no_grad():
        for data, target in pieces:
            scores, hidden = model(data, hidden)
            total += F.cross_entropy(scores.flatten(0, 1), target.flatten(), reduction="sum").item()
            words += target.numel()
    return _perplexity(total / words)


def _pass(side: Side, pieces: list[tuple[Tensor, Tensor]], number: int) -> tuple[float, tuple[float, ...]]:
    """Learns all pieces in turn; gives the perplexity meanwhile, and each loss."""
    hidden = side.model.nothing_read(pieces[0][0].shape[1])
    losses = []
    total, words = 0.0, 0
    bar = tc.progress(pieces, description=f"epoch {number}")
    for data, target in bar:
        loss, hidden = side.step(data, target, hidden)
        bar.step(loss=loss)
        losses.append(loss)
        total += loss * target.numel()
        words += target.numel()
    return _perplexity(total / words), tuple(losses)


def _perplexity(loss: float) -> float:
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf
