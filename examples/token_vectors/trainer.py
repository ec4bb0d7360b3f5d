"""A trainer: reads its share of the files, and trains both tables with the pairs in it.

As a program it has the arguments of the example, and finds its rank and the owners in its environment.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, Self

import numpy as np
import torch
from torch import Tensor

import trainer_client as tc
from examples.jobs import PATIENCE, tell
from examples.token_vectors.corpus import id_of, identifiers, source_files
from examples.token_vectors.loss import loss_of
from examples.token_vectors.pairs import Batch, Pairs
from examples.token_vectors.settings import Settings, parse
from examples.token_vectors.vocabulary import Integers, Vocabulary, merged

READ, PLANNED, LOSS = "read", "planned", "loss"
"""What a trainer tells: the identifiers of one more file; about how many steps it will take; the loss of a step."""

WAIT_SECONDS: Final = 600.0
"""Longest wait until all have read their files."""


class Vectors:
    """Both tables.

    Args:
        ps: The client.
        tokens: A vector for each identifier: the result.
        contexts: Another for each, which it has when it stands beside others.
    """

    def __init__(self, ps: tc.Client, tokens: tc.Table, contexts: tc.Table) -> None:
        self.tokens = tokens
        self.contexts = contexts
        self._ps = ps

    @classmethod
    async def attach(cls, ps: tc.Client, settings: Settings) -> Self:
        """Makes the tables on the owners, or finds them there.

        Raises:
            PsError: An owner has refused.
        """
        # In place of a smallest count, which word2vec.c has: what comes rarely gets no row, or loses it again. Rows may
        # go at any moment, because all of those of frequent identifiers are looked up in every other step.
        life: dict[str, Any] = {
            "admit": tc.tables.AfterSightings(settings.sightings) if settings.sightings > 1 else None,
            "max_rows": settings.max_rows,
            "evict": tc.tables.Eviction(at_capacity="least_frequent", spare=0),
        }
        # As there: small numbers for one table, and zeros for the other.
        inits = {"tokens": tc.tables.Uniform(-0.5 / settings.dim, 0.5 / settings.dim), "contexts": tc.tables.Zeros()}
        optimizer = tc.tables.Adagrad(lr=settings.lr)
        tokens, contexts = await asyncio.gather(
            *(
                ps.table(name, dim=settings.dim, optimizer=optimizer, init=init, seed=settings.seed, **life)
                for name, init in inits.items()
            )
        )
        return cls(ps, tokens, contexts)

    async def learn(self, batch: Batch) -> float:
        """Takes a step with a batch, and returns its loss."""
        async with self._ps.context() as ctx:
            found = await self._ps.look_up({self.tokens: batch.centres, self.contexts: batch.others})
            loss = loss_of(found[self.tokens], found[self.contexts], batch.weights)
            await ctx.backward(loss, step=[self.tokens.optimizer, self.contexts.optimizer])
        return loss.item()

    async def of(self, ids: Integers) -> Tensor:
        """The vectors of identifiers, [n, dim]. No table grows."""
        return await self.tokens(torch.from_numpy(ids))

    async def sizes(self) -> list[int]:
        """The rows of both tables."""
        return list(await asyncio.gather(self.tokens.size(), self.contexts.size()))


async def agreed(ps: tc.Client, settings: Settings, counts: Mapping[str, int]) -> Vocabulary:
    """The vocabulary of all text, from what each trainer has counted; the program that shows progress is a member, too.

    Raises:
        PsError: Another member has failed, or does not come.
    """
    size = settings.trainers + 1
    async with await ps.communicator("vocabulary", size, timeout=WAIT_SECONDS) as team:
        own = {"tokens": list(counts), "counts": torch.tensor(list(counts.values()), dtype=torch.int64)}
        parts = await team.all_gather(own)
    return merged(dict(zip(part["tokens"], part["counts"].tolist(), strict=True)) for part in parts)


async def train(rank: int, settings: Settings) -> None:
    """Does the work of a trainer, and tells of it."""
    counts: Counter[str] = Counter()
    texts = []
    # Before connecting: it takes seconds, in which the event loop would not answer the owners.
    for path in source_files(settings.source)[rank :: settings.trainers]:
        names = identifiers(path)
        counts.update(names)
        texts.append(names)
        tell(READ, len(names))
    ids = {name: id_of(name) for name in counts}
    async with tc.connect(timeout=PATIENCE) as ps:
        vectors = await Vectors.attach(ps, settings)
        vocabulary = await agreed(ps, settings, counts)
        pairs = Pairs(
            [np.array([ids[name] for name in names], np.int64) for names in texts],
            vocabulary,
            *(settings.seed * settings.trainers + rank, settings.batch_size),
            *(settings.window, settings.negatives, settings.threshold),
        )
        tell(PLANNED, pairs.expected_steps() * settings.epochs)
        for epoch in range(settings.epochs):
            for batch in pairs.batches(epoch):
                tell(LOSS, await vectors.learn(batch))


if __name__ == "__main__":
    torch.set_num_threads(1)
    asyncio.run(train(int(os.environ["RANK"]), parse()))
