"""Divides ratings into those to train on and those to test with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from examples.recommender.ratings.movielens import Integers, Ratings, RatingsError

NEGATIVES: Final = 99
"""Items among which that of a test is ranked."""

_TESTS, _TRAINING = 0, 1


class Batch(NamedTuple):
    """Pairs of a user and an item.

    Attributes:
        users: Ids as in the file, int64 [n].
        items: Ids as in the file, int64 [n].
        labels: 1 for what the user has rated and 0 for what was drawn, float32 [n].
    """

    users: Tensor
    items: Tensor
    labels: Tensor


class Tests(NamedTuple):
    """Users, and the items that are ranked for each.

    Attributes:
        users: Ids, int64 [n].
        items: Ids, int64 [n, 100]. The user has rated the first last, and none of the others.
    """

    users: Tensor
    items: Tensor


class LeaveOneOut:
    """Trains on all ratings but each user's latest, with negatives that are drawn anew in each epoch.

    It is the protocol of X. He et al., "Neural Collaborative Filtering", WWW 2017: the latest item of a user is ranked
    among 99 that the user has not rated. Users with one rating, or without 99 other items, are not tested.

    Args:
        ratings: The ratings. If a user has rated an item several times, the latest counts.
        seed: Which negatives are drawn, and the order of the batches.
        batch_size: Pairs in a batch.
        negatives: Pairs with an item that the user has not rated, for each that the user has.
        epochs: How often each rating is used.
        steps: Most batches; None for all.

    Attributes:
        tests: What to test with.
        steps: Number of batches.
        popularity: How many ratings there are to train on for each item of `tests`, [n, 100].

    Raises:
        RatingsError: There is nobody to test with, or not enough for a batch.
    """

    def __init__(
        self,
        ratings: Ratings,
        seed: int,
        batch_size: int,
        negatives: int = 4,
        epochs: int = 1,
        steps: int | None = None,
    ) -> None:
        self._seed = seed
        self._batch_size = batch_size
        self._negatives = negatives
        self._user_ids, users = np.unique(ratings.users, return_inverse=True)
        self._item_ids, items = np.unique(ratings.items, return_inverse=True)
        users, items = _latest(users, items, ratings.times)
        latest = np.flatnonzero(np.diff(users, append=-1))
        held = latest[np.diff(latest, prepend=-1) > 1]
        kept = np.ones(len(users), bool)
        kept[held] = False
        self._users, self._items = users[kept], items[kept]
        self._trained = np.sort(self._keys(self._users, self._items))
        self._per_epoch = len(self._users) * (1 + negatives) // batch_size
        self.steps = min(self._per_epoch * epochs, steps or self._per_epoch * epochs)
        known = np.bincount(users)
        held = held[len(self._item_ids) - known[users[held]] >= NEGATIVES]
        if not self.steps or not len(held):
            raise RatingsError(
                f"{len(users)} ratings of {len(self._item_ids)} items: too few for a batch of {batch_size}, or for "
                f"{NEGATIVES} items that a user has not rated"
            )
        drawn = self._drawn_tests(users[held], np.sort(self._keys(users, items)))
        ranked = np.concatenate([items[held][:, None], drawn], axis=1)
        self.tests = Tests(torch.from_numpy(self._user_ids[users[held]]), torch.from_numpy(self._item_ids[ranked]))
        self.popularity = torch.from_numpy(np.bincount(self._items, minlength=len(self._item_ids))[ranked])

    @property
    def ids(self) -> tuple[Tensor, Tensor]:
        """All users and all items, ascending."""
        return torch.from_numpy(self._user_ids), torch.from_numpy(self._item_ids)

    def batches(self, rank: int = 0, trainers: int = 1) -> Iterator[Batch]:
        """Every batch once; with several trainers each gets every n-th of them."""
        for step in range(self.steps):
            epoch, place = divmod(step, self._per_epoch)
            if place == 0:
                users, items, labels = self._epoch(epoch)
            if step % trainers == rank:
                part = slice(place * self._batch_size, (place + 1) * self._batch_size)
                yield Batch(users[part], items[part], labels[part])

    def _epoch(self, epoch: int) -> Batch:
        """All pairs of an epoch, in a random order."""
        random = np.random.default_rng([self._seed, _TRAINING, epoch])
        rated = len(self._users)
        users = np.tile(self._users, 1 + self._negatives)
        items = np.concatenate([self._items, self._drawn(random, users[rated:], self._trained)])
        order = random.permutation(len(users))
        labels = torch.from_numpy((order < rated).astype(np.float32))
        users, items = self._user_ids[users[order]], self._item_ids[items[order]]
        return Batch(torch.from_numpy(users), torch.from_numpy(items), labels)

    def _keys(self, users: Integers, items: Integers) -> Integers:
        return users * len(self._item_ids) + items

    def _drawn(self, random: np.random.Generator, users: Integers, rated: Integers, rounds: int = 50) -> Integers:
        """An item for each user that is not among the ratings; after some rounds any item, for who has rated all."""
        items = random.integers(0, len(self._item_ids), len(users))
        for _ in range(rounds):
            again = np.flatnonzero(_among(self._keys(users, items), rated))
            if not len(again):
                break
            items[again] = random.integers(0, len(self._item_ids), len(again))
        return items

    def _drawn_tests(self, users: Integers, rated: Integers) -> Integers:
        """99 different items for each user that the user has not rated, [n, 99]."""
        random = np.random.default_rng([self._seed, _TESTS])
        chosen = np.empty((len(users), NEGATIVES), np.int64)
        for place, user in enumerate(users):
            begin, end = np.searchsorted(rated, [user * len(self._item_ids), (user + 1) * len(self._item_ids)])
            others = np.ones(len(self._item_ids), bool)
            others[rated[begin:end] - user * len(self._item_ids)] = False
            chosen[place] = random.choice(np.flatnonzero(others), NEGATIVES, replace=False)
        return chosen


def _latest(users: Integers, items: Integers, times: Integers) -> tuple[Integers, Integers]:
    """Each pair once, by user, and those of a user in the order of time; equal times stay in their order."""
    order = np.lexsort((np.arange(len(users)), times, items, users))
    users, items, times = users[order], items[order], times[order]
    last = (np.diff(users, append=-1) != 0) | (np.diff(items, append=-1) != 0)
    users, items, times, place = users[last], items[last], times[last], order[last]
    order = np.lexsort((place, times, users))
    return users[order], items[order]


def _among(keys: Integers, known: Integers) -> np.ndarray:
    """Which keys are in a sorted array, bool [n]."""
    return known[np.minimum(np.searchsorted(known, keys), len(known) - 1)] == keys
