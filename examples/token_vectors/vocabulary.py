"""How often each identifier occurs in all of the text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from examples.token_vectors.corpus import id_of

Integers = NDArray[np.int64]

_POWER: Final = 0.75
"""Of the counts, for negatives: T. Mikolov et al., 2013."""


class Vocabulary:
    """Identifiers, their ids and counts, by falling count.

    Args:
        counts: How often each occurs.

    Attributes:
        tokens: The identifiers.
        ids: Their ids, int64 [n].
        counts: How often they occur, int64 [n].
    """

    def __init__(self, counts: Mapping[str, int]) -> None:
        # By name where counts are equal, so that every trainer has the same order.
        self.tokens = sorted(counts, key=lambda token: (-counts[token], token))
        self.ids: Integers = np.array([id_of(token) for token in self.tokens], np.int64)
        self.counts: Integers = np.array([counts[token] for token in self.tokens], np.int64)
        self._order = np.argsort(self.ids)
        self._shares = np.cumsum(self.counts**_POWER)

    def numbers(self, ids: Integers) -> Integers:
        """The places of ids in `ids`. All of them are there."""
        return np.asarray(self._order[np.searchsorted(self.ids, ids, sorter=self._order)])

    def negatives(self, random: np.random.Generator, shape: tuple[int, ...]) -> Integers:
        """Ids that are drawn with probabilities proportional to the counts to the power of 0.75."""
        drawn = np.searchsorted(self._shares, random.random(shape) * self._shares[-1], side="right")
        return np.asarray(self.ids[np.minimum(drawn, len(self.ids) - 1)])

    def keep(self, threshold: float) -> NDArray[np.float64]:
        """The probability with which each identifier stays in the text, [n].

        It is `sqrt(t / f) + t / f` for a share f of the text, as in the authors' program word2vec.c.
        """
        share = threshold / (self.counts / self.counts.sum())
        return np.asarray(np.minimum(np.sqrt(share) + share, 1.0))


def merged(parts: Iterable[Mapping[str, int]]) -> Vocabulary:
    """The vocabulary of several parts of the text."""
    total: Counter[str] = Counter()
    for part in parts:
        total.update(part)
    return Vocabulary(total)
