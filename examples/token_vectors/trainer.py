"""A trainer: reads its share of the files, and trains both tables with the pairs in it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any, Final, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

import trainer_client as tc
from examples.processes import PATIENCE
from examples.token_vectors.corpus import id_of, identifiers, source_files
from examples.token_vectors.loss import loss_of
from examples.token_vectors.pairs import Batch, Pairs
from examples.token_vectors.settings import Settings
from examples.token_vectors.vocabulary import Integers, Vocabulary, merged

WAIT_SECONDS: Final = 600.0
"""Longest wait until all have read their files."""


class Read(NamedTuple):
    """A trainer has read one more file."""

    tokens: int


class Planned(NamedTuple):
    """A trainer has all that it needs, and will take about so many steps."""

    steps: int


class Step(NamedTuple):
    """A trainer has taken a step."""

    loss: float


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


def run(rank: int, settings: Settings, addresses: Sequence[str], told: Connection) -> None:
    """The process of a trainer. It sends what it has done, and at the end None."""
    torch.set_num_threads(1)
    asyncio.run(_train(rank, settings, addresses, told))


async def _train(rank: int, settings: Settings, addresses: Sequence[str], told: Connection) -> None:
    counts: Counter[str] = Counter()
    texts = []
    # Before connecting: it takes seconds, in which the event loop would not answer the owners.
    for path in source_files(settings.source)[rank :: settings.trainers]:
        names = identifiers(path)
        counts.update(names)
        texts.append(names)
        told.send(Read(len(names)))
    ids = {name: id_of(name) for name in counts}
    async with tc.connect(*addresses, timeout=PATIENCE) as ps:
        vectors = await Vectors.attach(ps, settings)
        vocabulary = await agreed(ps, settings, counts)
        pairs = Pairs(
            [np.array([ids[name] for name in names], np.int64) for names in texts],
            vocabulary,
            *(settings.seed * settings.trainers + rank, settings.batch_size),
            *(settings.window, settings.negatives, settings.threshold),
        )
        told.send(Planned(pairs.expected_steps() * settings.epochs))
        for epoch in range(settings.epochs):
            for batch in pairs.batches(epoch):
                told.send(Step(await vectors.learn(batch)))
    told.send(None)
