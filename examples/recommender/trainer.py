"""A trainer: looks rows up on the owners, computes the dense part here, and pushes the gradients of both.

As a program it has the arguments of the example, and finds its rank and the owners in its environment.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

import trainer_client as tc
from examples.jobs import PATIENCE, tell
from examples.recommender.clicks import CATEGORIES, Clicks
from examples.recommender.model import DIM, Dense, loss_of
from examples.recommender.settings import Settings, parse, source_of


class Recommender:
    """The model as a trainer has it: tables on the owners, and its own copy of the dense part.

    Args:
        ps: The client.
        tables: A table for each categorical feature.
        dense: The copy.
        opt: The optimizer of the dense part, on the owner; None for a program that does not train, because rounds
            would wait for it.
    """

    def __init__(
        self, ps: tc.Client, tables: Sequence[tc.Table], dense: tc.Replica, opt: tc.DistributedOptimizer | None
    ) -> None:
        self.tables = list(tables)
        self.dense = dense
        self.opt = opt
        self._ps = ps
        self._steps = [table.optimizer for table in tables]

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
        tables = await asyncio.gather(
            *(
                ps.table(
                    f"feature {column}",
                    dim=DIM,
                    optimizer=tc.tables.Adagrad(lr=settings.table_lr),
                    init=tc.tables.Normal(settings.init_std),
                    seed=settings.seed + column,
                )
                for column in range(CATEGORIES)
            )
        )
        net = await ps.module(Dense, name="dense", seed=settings.seed)
        opt = None
        if trains:
            policy = tc.policies.Sync(settings.trainers, "mean")
            opt = await ps.optimizer(torch.optim.Adam, net.parameters(), lr=settings.lr, policy=policy)
        return cls(ps, tables, await net.replica(), opt)

    async def predict(self, clicks: Clicks) -> Tensor:
        """The log-odds of clicks, [n]. No table grows."""
        with torch.no_grad():
            logits: Tensor = self.dense(clicks.dense, await self._rows(clicks))
            return logits

    async def learn(self, clicks: Clicks) -> float:
        """Takes a step with a batch, and returns its loss. A pass that is lost with an owner is run again."""
        pushes: list[tc.Pending[tc.Stepped | None]] = []
        loss = await self._ps.run(self._pass, clicks, pushes)
        await pushes[0]
        return loss

    async def _pass(self, ctx: tc.Context, clicks: Clicks, pushes: list[tc.Pending[tc.Stepped | None]]) -> float:
        """One attempt. The first pushes the dense part, which counts once, whatever becomes of the rows."""
        assert self.opt is not None
        remote = await self._rows(clicks)
        # Two leaves, the dense part and the rows, so that the gradients of both travel at the same time.
        rows = remote.detach().requires_grad_()
        loss = loss_of(self.dense(clicks.dense, rows), clicks.labels)
        if pushes:
            (gradient,) = torch.autograd.grad(loss, [rows])
        else:
            loss.backward()
            gradient = rows.grad
            # The loss of each round has a curve on the page of the owners.
            pushes.append(self.dense.push(self.opt, values={"loss": loss.item()}))
        await ctx.backward(remote, gradient, step=self._steps)
        return loss.item()

    async def leave(self) -> None:
        """Steps no more, so that no round waits for this trainer."""
        assert self.opt is not None
        await self.opt.leave()

    async def _rows(self, clicks: Clicks) -> Tensor:
        """The rows of clicks, [n, 26, 16], with one request to each owner."""
        wanted = {table: clicks.ids[:, column] for column, table in enumerate(self.tables)}
        found = await self._ps.look_up(wanted)
        return torch.stack([found[table] for table in self.tables], dim=1)


async def train(rank: int, settings: Settings) -> None:
    """Takes the steps of a trainer, and tells the loss of each."""
    async with tc.connect(timeout=PATIENCE) as ps:
        model = await Recommender.attach(ps, settings)
        for batch in source_of(settings).batches(rank, settings.trainers):
            tell("loss", await model.learn(batch))
        await model.leave()


if __name__ == "__main__":
    torch.set_num_threads(1)
    asyncio.run(train(int(os.environ["RANK"]), parse()))
