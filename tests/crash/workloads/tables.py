"""Steps of all trainers on the rows of a table.

The loss is linear in the rows, so that a step is the same whatever came before it. Rows begin as zeros.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch

import trainer_client as tc
from tests.crash.events import Action, Teller, Violation
from tests.crash.workloads.ordered import Ordered
from tests.crash.workloads.workload import ATTEMPTS, Horizon, Workload, drawn

_DIM, _IDS, _LR = 4, 40, 0.125


def batch(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Different ids, and the gradients of their rows."""
    chosen = random.Random(seed).sample(range(_IDS), 6)
    return torch.tensor(chosen), drawn(seed, 6, _DIM)


class Rows:
    """The rows as they should be."""

    def __init__(self) -> None:
        self.rows = torch.zeros(_IDS, _DIM)

    def apply(self, seed: int) -> None:
        """A step with the gradients of a batch."""
        ids, gradients = batch(seed)
        self.rows[ids] -= _LR * gradients

    def state(self) -> Any:
        return self.rows


class Tables(Workload):
    """A table on each owner."""

    name = "rows"

    async def prepare(self, ps: tc.Client, slot: int) -> None:
        sgd = tc.tables.SGD(lr=_LR)
        self._tables = {
            owner: await ps.table(f"rows-{owner}", _DIM, owners=[owner], optimizer=sgd, init=tc.tables.Zeros())
            for owner in self.uses
        }

    async def step(self, ps: tc.Client, choose: random.Random, tell: Teller) -> None:
        owner, seed = choose.choice(self.uses), choose.randrange(1 << 30)
        table = self._tables[owner]
        number, (ids, gradients) = tell.begin(self.name, owner=owner, seed=seed), batch(seed)

        async def attempt(ctx: tc.Context) -> Any:
            tell.attempt(number)
            return await ctx.backward((await table(ids) * gradients).sum(), step=table.optimizer)

        stepped = await ps.run(attempt, attempts=ATTEMPTS)
        tell.done(number, version=None if stepped.repeated else stepped[owner])

    async def begin(self, ps: tc.Client) -> None:
        await self.prepare(ps, 0)
        self._ordered = {owner: Ordered(f"the rows on {owner}", Rows()) for owner in self.uses}

    async def check(self, ps: tc.Client, actions: Sequence[Action], horizon: Horizon) -> None:
        await self.prepare(ps, 0)
        for owner in self.uses:
            known: dict[int, int] = {}
            must, may, young = [], [], []
            for each in actions:
                seed = each.what["seed"]
                if each.what["owner"] != owner:
                    continue
                if not each.is_done:
                    may.append(seed)
                elif (version := each.result["version"]) is None:
                    (may if horizon.may_be_lost(each, owner) else must).append(seed)
                elif version in known:
                    raise Violation(f"two steps of the rows on {owner} were acknowledged with version {version}")
                else:
                    known[version] = seed
                    if horizon.may_be_lost(each, owner):
                        young.append(version)
            earliest = min(young, default=1 << 60) if horizon.lossy(owner) else 0
            status = await ps.status(owner, most=1000)
            (version,) = [each.version for each in status.optimizers if each.name.startswith(f"rows-{owner}")]
            rows = await self._tables[owner](torch.arange(_IDS))
            self._ordered[owner].follow(version, rows.detach(), known, must, may, earliest)
