"""Calls of objects that are no modules: what each call adds counts once, in the order of the answers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import trainer_client as tc
from tests.crash import hosted
from tests.crash.events import Action, Teller, Violation
from tests.crash.workloads.ordered import Ordered
from tests.crash.workloads.workload import Horizon, Workload


class Sum:
    """The ledger as it should be."""

    def __init__(self) -> None:
        self.ledger = hosted.Ledger()

    def apply(self, number: int) -> None:
        self.ledger.add(number)

    def state(self) -> Any:
        return self.ledger.get()


class Ledgers(Workload):
    """One ledger on each owner."""

    name = "ledger"

    async def prepare(self, ps: tc.Client, slot: int) -> None:
        self._ledgers = {
            owner: await ps.create(f"{hosted.MODULE}.Ledger", name="ledger", owner=owner) for owner in self.uses
        }

    async def step(self, ps: tc.Client, choose: random.Random, tell: Teller) -> None:
        owner, value = choose.choice(self.uses), choose.randrange(1 << 30)
        number = tell.begin(self.name, owner=owner, value=value)
        tell.done(number, count=await self._ledgers[owner].add(value))

    async def begin(self, ps: tc.Client) -> None:
        await self.prepare(ps, 0)
        self._ordered = {owner: Ordered(f"the ledger on {owner}", Sum()) for owner in self.uses}

    async def check(self, ps: tc.Client, actions: Sequence[Action], horizon: Horizon) -> None:
        await self.prepare(ps, 0)
        for owner in self.uses:
            own = [each for each in actions if each.what["owner"] == owner]
            known: dict[int, int] = {}
            for each in own:
                if each.is_done:
                    if (count := each.result["count"]) in known:
                        raise Violation(f"the ledger on {owner} has given the number {count} twice")
                    known[count] = each.what["value"]
            may = [each.what["value"] for each in own if not each.is_done]
            earliest = 0
            if horizon.lossy(owner):
                young = [each.result["count"] for each in own if each.is_done and horizon.may_be_lost(each, owner)]
                earliest = min(young, default=1 << 60)
            state = await self._ledgers[owner].get()
            self._ordered[owner].follow(state[0], state, known, [], may, earliest)
