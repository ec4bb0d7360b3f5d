"""Generates clicks whose probabilities are known, in arrays or in Criteo's text format.

::

    python -m examples.recommender.planted --steps 100 > clicks.txt
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from examples.recommender.clicks import CATEGORIES, COUNTS, Clicks, make_clicks, squash
from ps_wire.tables.hashing import mix

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

FEWEST, MOST = 4, 40_000
SIZES: Final = np.round(np.geomspace(FEWEST, MOST, CATEGORIES)).astype(np.int64)
"""How many values each categorical feature has."""

FACTORS: Final = 3
"""Numbers in the hidden vector of a value."""

_HELD_OUT_STEP: Final = -1
_OFFSET: Final = -1.6
_WORLD: Final = 7
"""Seed of the hidden weights, the same for every set."""


class Drawn(NamedTuple):
    """Generated clicks, as they would stand in a file, and what they were drawn from.

    Attributes:
        labels: 0 or 1, [n].
        counts: Integer features, [n, 13]; those that are `missing` are 0.
        values: Categorical features, [n, 26]; -1 for a missing one.
        missing: Which integer features are missing, bool [n, 13].
        probabilities: Of a click, [n].
    """

    labels: Integers
    counts: Integers
    values: Integers
    missing: NDArray[np.bool_]
    probabilities: Array


class Planted:
    """Generated clicks. Each batch is drawn when it is asked for, and depends on the seed and its number only.

    Every value of a categorical feature has a hidden weight, and a hidden vector. The log-odds of a click are the sum
    of the weights, of the products of the vectors of two features that belong together, and of some integer features.

    Args:
        seed: Which clicks.
        batch_size: Clicks in a batch.
        steps: Number of batches.
        held_out: Number of clicks to test with.

    Attributes:
        steps: As the argument.
    """

    name = "generated clicks"

    def __init__(self, seed: int, batch_size: int, steps: int, held_out: int = 20_000) -> None:
        self._seed = seed
        self._batch_size = batch_size
        self._held_out = held_out
        self.steps = steps

    def batches(self, rank: int = 0, trainers: int = 1) -> Iterator[Clicks]:
        """Every batch once; with several trainers each gets every n-th of them."""
        for step in range(rank, self.steps, trainers):
            drawn = self.drawn(step)
            yield make_clicks(drawn.labels, drawn.counts, drawn.values)

    def held_out(self) -> Clicks:
        """Clicks that are in no batch."""
        drawn = self.drawn(_HELD_OUT_STEP)
        return make_clicks(drawn.labels, drawn.counts, drawn.values)

    def best_scores(self) -> Tensor:
        """The probabilities that the held-out clicks were drawn with, [n]: nobody predicts them better."""
        return torch.from_numpy(self.drawn(_HELD_OUT_STEP).probabilities)

    def drawn(self, step: int) -> Drawn:
        """The batch of a step; the held-out clicks for step -1."""
        size = self._held_out if step == _HELD_OUT_STEP else self._batch_size
        random = np.random.default_rng([self._seed, step + 1])
        # Popularity falls with the number of a value, as it does in real data: half of all draws are of few values.
        numbers = np.floor(SIZES * random.random((size, CATEGORIES)) ** 5).astype(np.int64)
        missing = random.random((size, COUNTS)) < 0.1
        counts = np.where(missing, 0, np.exp(random.normal(1.0, 1.2, (size, COUNTS))).astype(np.int64))
        log_odds = _OFFSET + _from_values(numbers) + _from_counts(counts)
        probabilities = 1 / (1 + np.exp(-log_odds))
        labels = (random.random(size) < probabilities).astype(np.int64)
        values = _hidden(numbers, "values") >> np.uint64(32)
        absent = random.random((size, CATEGORIES)) < 0.01
        return Drawn(labels, counts, np.where(absent, -1, values.astype(np.int64)), missing, probabilities)


def _from_values(numbers: Integers) -> Array:
    """The part of the log-odds that is from categorical features, [n]."""
    weights = _normal(_hidden(numbers, "weights"))
    vectors = np.stack([_normal(_hidden(numbers, f"factor {each}")) for each in range(FACTORS)], axis=-1)
    half = CATEGORIES // 2
    products = (vectors[:, :half] * vectors[:, half:]).sum(-1)
    return np.asarray(0.32 * weights.sum(1) + 0.08 * products.sum(1))


def _from_counts(counts: Integers) -> Array:
    """The part of the log-odds that is from integer features, [n]."""
    dense = squash(counts).double().numpy() - 1.2
    return np.asarray(0.4 * dense[:, 0] - 0.3 * dense[:, 1] + 0.4 * dense[:, 2] * dense[:, 3])


def _hidden(numbers: Integers, purpose: str) -> NDArray[np.uint64]:
    """A random word for each value of each feature, [n, 26]."""
    salt = int.from_bytes(purpose.encode(), "little") + _WORLD
    words = numbers + (np.arange(CATEGORIES, dtype=np.int64) << 40)
    return mix(mix(words).view(np.int64), salt)


def _normal(words: NDArray[np.uint64]) -> Array:
    """Normal numbers from random words."""
    shares = torch.from_numpy((words >> np.uint64(11)).astype(np.float64)).add(0.5).div(2**53)
    return torch.special.ndtri(shares).numpy()


def lines(drawn: Drawn) -> Iterator[str]:
    """The clicks in Criteo's format, without line breaks."""
    for label, counts, missing, values in zip(drawn.labels, drawn.counts, drawn.missing, drawn.values, strict=True):
        integers = ("" if gone else str(count) for count, gone in zip(counts, missing, strict=True))
        yield "\t".join([str(label), *integers, *("" if value < 0 else f"{value:08x}" for value in values)])


def main(arguments: list[str] | None = None) -> None:
    """Writes clicks to standard output."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.recommender.planted", description="Writes generated clicks in Criteo's text format."
    )
    parser.add_argument("--steps", type=int, default=100, help="batches to write")
    parser.add_argument("--batch-size", type=int, default=512, help="clicks in a batch")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args(arguments)
    planted = Planted(chosen.seed, chosen.batch_size, chosen.steps)
    for step in range(chosen.steps):
        sys.stdout.writelines(f"{line}\n" for line in lines(planted.drawn(step)))


if __name__ == "__main__":
    main()
