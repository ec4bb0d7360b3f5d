"""A trainer: looks users and items up on the owners, computes the dense part here, and pushes the gradients of both.

As a program it has the arguments of the example, and finds its rank and the owners in its environment.
"""

from __future__ import annotations

import asyncio
import os
from typing import Final, Self

import torch
from torch import Tensor

import trainer_client as tc
from examples.jobs import PATIENCE, tell
from examples.recommender.ratings.model import MODELS, loss_of
from examples.recommender.ratings.ranking import Ranked, rank
from examples.recommender.ratings.settings import Settings, parse, source_of
from examples.recommender.ratings.split import Batch, Tests

PART: Final = 256
"""Users that are tested at once."""


class Collaborative:
    """The model as a trainer has it: two tables on the owners, and its own copy of the dense part.

    Args:
        ps: The client.
        users: The table of users.
        items: The table of items.
        dense: The copy.
        opt: The optimizer of the dense part, on the owner; None for a program that does not train, because rounds
            would wait for it.
    """

    def __init__(
        self, ps: tc.Client, users: tc.Table, items: tc.Table, dense: tc.Replica, opt: tc.DistributedOptimizer | None
    ) -> None:
        self.users = users
        self.items = items
        self.dense = dense
        self.opt = opt
        self._ps = ps

    @property
    def tables(self) -> list[tc.Table]:
        """Both tables."""
        return [self.users, self.items]

    @classmethod
    async def attach(cls, ps: tc.Client, settings: Settings, trains: bool = True) -> Self:
        """Makes the model on the owners, or finds it there.

        Args:
            ps: The client.
            settings: The settings of the training.
            trains: Whether this program takes part in the training.

        Raises:
            PsError: An owner has refused.
        """
        model = MODELS[settings.model]
        users, items = await asyncio.gather(
            *(
                ps.table(
                    name,
                    dim=model.dim(settings.factors),
                    optimizer=tc.tables.LazyAdam(lr=settings.table_lr),
                    init=tc.tables.Normal(settings.init_std),
                    seed=settings.seed + place,
                )
                for place, name in enumerate(("users", "items"))
            )
        )
        net = await ps.module(model, settings.factors, name="dense", seed=settings.seed)
        opt = None
        if trains:
            policy = tc.policies.Sync(settings.trainers, "mean")
            opt = await ps.optimizer(torch.optim.Adam, net.parameters(), lr=settings.lr, policy=policy)
        return cls(ps, users, items, await net.replica(), opt)

    async def learn(self, batch: Batch) -> float:
        """Takes a step with a batch, and returns its loss."""
        assert self.opt is not None
        async with self._ps.context() as ctx:
            found = await self._ps.look_up({self.users: batch.users, self.items: batch.items})
            remote = [found[self.users], found[self.items]]
            # Leaves of their own, so that the gradients of rows and of the dense part travel at the same time.
            rows = [each.detach().requires_grad_() for each in remote]
            loss = loss_of(self.dense(*rows), batch.labels)
            loss.backward()
            steps = [table.optimizer for table in self.tables]
            gradients = [each.grad for each in rows]
            await asyncio.gather(ctx.backward(remote, gradients, step=steps), self.dense.push(self.opt))
        return loss.item()

    async def leave(self) -> None:
        """Steps no more, so that no round waits for this trainer."""
        assert self.opt is not None
        await self.opt.leave()

    async def test(self, tests: Tests) -> Ranked:
        """Ranks the items of tests. No table grows."""
        scores = []
        with torch.no_grad():
            for users, items in zip(tests.users.split(PART), tests.items.split(PART), strict=True):
                found = await self._ps.look_up({self.users: users, self.items: items})
                width = items.shape[1]
                logits: Tensor = self.dense(
                    found[self.users].repeat_interleave(width, dim=0), found[self.items].flatten(0, 1)
                )
                scores.append(logits.view(-1, width))
        return rank(torch.cat(scores))


async def train(rank: int, settings: Settings) -> None:
    """Takes the steps of a trainer, and tells the loss of each."""
    async with tc.connect(timeout=PATIENCE) as ps:
        model = await Collaborative.attach(ps, settings)
        for batch in source_of(settings).batches(rank, settings.trainers):
            tell("loss", await model.learn(batch))
        await model.leave()


if __name__ == "__main__":
    torch.set_num_threads(1)
    asyncio.run(train(int(os.environ["RANK"]), parse()))
