"""Pairs of an identifier and one beside it, with negatives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from examples.token_vectors.vocabulary import Integers, Vocabulary


class Batch(NamedTuple):
    """Some pairs.

    Attributes:
        centres: Ids, int64 [n].
        others: Ids, int64 [n, 1 + negatives]. The first stands beside the centre, the others were drawn.
        weights: float32 [n, 1 + negatives]: 1, and 0 for a drawn one that is the first.
    """

    centres: Tensor
    others: Tensor
    weights: Tensor


class Pairs:
    """The pairs of a text.

    Frequent identifiers are left out at random, and the window around each identifier has a random width: T. Mikolov et
    al., "Distributed Representations of Words and Phrases and their Compositionality", NIPS 2013.

    Args:
        texts: The ids of each file.
        vocabulary: Of all texts, also those of other trainers.
        seed: Which identifiers are left out, and which negatives are drawn.
        batch_size: Pairs in a batch. What does not fill one is left out.
        window: Largest distance of the two identifiers of a pair, counted without those that are left out.
        negatives: Drawn identifiers for each pair.
        threshold: Identifiers with a larger share of the text are left out sometimes.
    """

    def __init__(
        self,
        texts: Sequence[Integers],
        vocabulary: Vocabulary,
        seed: int,
        batch_size: int,
        window: int = 5,
        negatives: int = 5,
        threshold: float = 1e-3,
    ) -> None:
        self._ids = np.concatenate([np.empty(0, np.int64), *texts])
        self._files = np.repeat(np.arange(len(texts)), [len(text) for text in texts])
        self._vocabulary = vocabulary
        self._keep = vocabulary.keep(threshold)[vocabulary.numbers(self._ids)]
        self._seed = seed
        self._batch_size = batch_size
        self._window = window
        self._negatives = negatives

    def expected_steps(self) -> int:
        """About how many batches an epoch has."""
        # A window is (1 + window) / 2 wide in the mean, on both sides.
        return int(self._keep.sum() * (1 + self._window) / self._batch_size)

    def batches(self, epoch: int) -> Iterator[Batch]:
        """The batches of an epoch, in a random order of the pairs. They depend on the seed and the epoch only."""
        random = np.random.default_rng([self._seed, epoch])
        centres, beside = self._pairs(random)
        order = random.permutation(len(centres))
        for begin in range(0, len(order) - self._batch_size + 1, self._batch_size):
            part = order[begin : begin + self._batch_size]
            drawn = self._vocabulary.negatives(random, (len(part), self._negatives))
            others = np.concatenate([beside[part][:, None], drawn], axis=1)
            weights = np.ones(others.shape, np.float32)
            weights[:, 1:] = others[:, 1:] != others[:, :1]
            yield Batch(torch.from_numpy(centres[part]), torch.from_numpy(others), torch.from_numpy(weights))

    def _pairs(self, random: np.random.Generator) -> tuple[Integers, Integers]:
        kept = random.random(len(self._ids)) < self._keep
        ids, files = self._ids[kept], self._files[kept]
        widths = random.integers(1, self._window + 1, len(ids))
        centres, beside = [], []
        for distance in range(1, self._window + 1):
            first, second = ids[:-distance], ids[distance:]
            same = files[:-distance] == files[distance:]
            for centre, other, width in ((first, second, widths[:-distance]), (second, first, widths[distance:])):
                near = same & (width >= distance)
                centres.append(centre[near])
                beside.append(other[near])
        return np.concatenate(centres), np.concatenate(beside)
