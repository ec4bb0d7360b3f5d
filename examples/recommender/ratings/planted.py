"""Generates ratings whose reasons are known, as arrays or in MovieLens' text format.

::

    python -m examples.recommender.ratings.planted > ratings.dat
"""

from __future__ import annotations

import argparse
import sys
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from examples.recommender.ratings.movielens import Integers, Ratings

FACTORS: Final = 4
"""Numbers in the hidden vector of a user, and of an item."""

FEWEST: Final = 20
"""Ratings of a user, at least; as in MovieLens."""

_TASTE: Final = 1.6
_START: Final = 978_300_000


class Drawn(NamedTuple):
    """Generated ratings, and what they were drawn from.

    Attributes:
        ratings: In no particular order.
        stars: From 1 to 5, [n].
        affinities: The hidden preference of each user for each item, [users, items]. Row 0 belongs to user 1, and
            column 0 to item 1.
    """

    ratings: Ratings
    stars: Integers
    affinities: NDArray[np.float64]


def draw(seed: int = 0, users: int = 1000, items: int = 1200, mean: int = 40) -> Drawn:
    """Ratings of users who rate what they prefer.

    A preference is the product of the hidden vectors of user and item, and the item's popularity. Users choose items
    without repetition, with probabilities that are proportional to its exponential.

    Args:
        seed: Which ratings.
        users: Number of users, who have the ids from 1.
        items: Number of items, which have the ids from 1.
        mean: How many ratings a user has in the mean, more than 20.
    """
    random = np.random.default_rng(seed)
    popularity = random.normal(0, 1, items)
    taste = random.normal(0, 1, (users, FACTORS)) @ random.normal(0, 1, (FACTORS, items)) / np.sqrt(FACTORS)
    affinities = _TASTE * taste + popularity
    # The largest of preferences with Gumbel noise are a sample without repetition.
    order = np.argsort(-(affinities + random.gumbel(0, 1, (users, items))), axis=1)
    counts = np.minimum(FEWEST + random.geometric(1 / (mean - FEWEST), users), items // 2)
    chosen = np.arange(items) < counts[:, None]
    owners, places = np.nonzero(chosen)
    picked = order[owners, places]
    times = _START + random.permutation(len(owners)) * 60
    preference = affinities[owners, picked]
    stars = np.searchsorted(np.quantile(preference, [0.1, 0.3, 0.5, 0.8]), preference) + 1
    return Drawn(Ratings(owners + 1, picked + 1, times), stars, affinities)


def main(arguments: list[str] | None = None) -> None:
    """Writes ratings to standard output."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.recommender.ratings.planted",
        description="Writes generated ratings in MovieLens' text format.",
    )
    parser.add_argument("--users", type=int, default=1000)
    parser.add_argument("--items", type=int, default=1200)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args(arguments)
    drawn = draw(chosen.seed, chosen.users, chosen.items)
    for (user, item, time), stars in zip(zip(*drawn.ratings, strict=True), drawn.stars, strict=True):
        sys.stdout.write(f"{user}::{item}::{stars}::{time}\n")


if __name__ == "__main__":
    main()
