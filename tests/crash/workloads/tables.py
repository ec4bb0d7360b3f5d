"""Steps of all trainers on the rows of a table.

The loss is linear in the rows, so that a step is the same whatever came before it. Rows begin as zeros. The harness
removes some now and then.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch

import trainer_client as tc
from tests.crash.events import Action, Teller, Violation
from tests.crash.workloads.ordered import Ordered
from tests.crash.workloads.workload import ATTEMPTS, Horizon, Workload, drawn

IDS: Final = 40
"""Rows of a table that are used, with the ids from 0 on."""

_DIM, _LR = 4, 0.125
_REMOVED: Final = 5


def batch(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Different ids, and the gradients of their rows."""
    chosen = random.Random(seed).sample(range(IDS), 6)
    return torch.tensor(chosen), drawn(seed, 6, _DIM)


def digest(rows: np.ndarray[Any, Any]) -> str:
    """A short name of the values of all rows."""
    return hashlib.sha256(rows.tobytes()).hexdigest()[:16]


class Rows:
    """The rows as they should be. `passed` has the digests of what they have been since the last check."""

    def __init__(self) -> None:
        self.rows = torch.zeros(IDS, _DIM)
        self.passed = [digest(self.rows.numpy())]

    def apply(self, seed: int) -> None:
        """A step with the gradients of a batch."""
        ids, gradients = batch(seed)
        self.rows[ids] -= _LR * gradients
        self.passed.append(digest(self.rows.numpy()))

    def remove(self, ids: Sequence[int]) -> None:
        """Has these rows begin anew."""
        self.rows[ids] = 0.0
        self.passed.append(digest(self.rows.numpy()))

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
            rows = await self._tables[owner](torch.arange(IDS))
            self._ordered[owner].follow(version, rows.detach(), known, must, may, earliest)

    def take_passed(self) -> dict[str, list[str]]:
        """By the name of each table, the digests of what its rows have been since the last time, in order."""
        taken = {}
        for owner in self.uses:
            reference = self._reference(owner)
            taken[f"rows-{owner}"], reference.passed = reference.passed, reference.passed[-1:]
        return taken

    async def remove_some(self, choose: random.Random) -> None:
        """Removes some rows, or none, of each table, once it was checked."""
        for owner in self.uses:
            ids = choose.sample(range(IDS), choose.choice([0, _REMOVED]))
            await self._tables[owner].remove(torch.tensor(ids, dtype=torch.int64))
            self._reference(owner).remove(ids)

    def _reference(self, owner: str) -> Rows:
        reference = self._ordered[owner].reference
        assert isinstance(reference, Rows)
        return reference
