"""Named objects that are made and deleted."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence

import torch
from torch import nn

import trainer_client as tc
from tests.crash.events import Action, Teller, Violation
from tests.crash.workloads.workload import Horizon, Workload, same


class Names(Workload):
    """Modules that are made and deleted, each by one trainer, and some without a name."""

    name = "names"

    async def prepare(self, ps: tc.Client, slot: int) -> None:
        self._life = f"{slot}-{os.getpid()}"
        self._made: list[tuple[str, str]] = []

    async def step(self, ps: tc.Client, choose: random.Random, tell: Teller) -> None:
        if len(self._made) > 2 or (self._made and choose.random() < 0.3):
            name, owner = self._made.pop(0)
            number = tell.begin(self.name, kind="delete", name=name, owner=owner)
            await ps.delete(name, owner)
            tell.done(number)
            return
        owner, seed = choose.choice(self.uses), choose.randrange(1 << 30)
        if choose.random() < 0.2:
            await ps.module(nn.Linear, 2, 2, owner=owner, seed=seed)  # given back at once
            return
        name = f"thing-{self._life}-{seed}"
        number = tell.begin(self.name, kind="make", name=name, owner=owner, seed=seed)
        made = await ps.module(nn.Linear, 3, 3, name=name, owner=owner, seed=seed)
        tell.done(number, was_made=made.was_made)
        self._made.append((name, owner))

    async def begin(self, ps: tc.Client) -> None:
        # Owner and seed of what is there, by name.
        self._there: dict[str, tuple[str, int]] = {}
        # The latest process of each slot: nobody deletes what others have made.
        self._lives: dict[str, str] = {}

    async def check(self, ps: tc.Client, actions: Sequence[Action], horizon: Horizon) -> None:
        doubtful: dict[str, tuple[str, int]] = {}
        gone: dict[str, str] = {}
        for each in actions:
            name, is_certain = each.what["name"], each.is_done and not horizon.may_be_lost(each, each.what["owner"])
            if each.what["kind"] == "make":
                if each.is_done and not each.result["was_made"]:
                    raise Violation(f"{name} was there before it was made: its making was applied twice")
                found = each.what["owner"], each.what["seed"]
                (self._there if is_certain else doubtful)[name] = found
            elif is_certain:
                del self._there[name]
                gone[name] = each.what["owner"]
            else:
                doubtful[name] = self._there.pop(name, None) or doubtful[name]
        for name, (owner, seed) in self._there.items():
            if not await self._is_there(ps, name, owner, seed):
                raise Violation(f"{name} on {owner} was made, and is not there")
        for name, owner in gone.items():
            if await self._is_there(ps, name, owner, None):
                raise Violation(f"{name} on {owner} was deleted, and is there")
        for name, (owner, seed) in doubtful.items():
            if await self._is_there(ps, name, owner, seed):
                self._there[name] = owner, seed
        for each in actions:
            _, slot, life, _ = each.what["name"].split("-")
            self._lives[slot] = life
        for name in list(self._there):
            _, slot, life, _ = name.split("-")
            if self._lives.get(slot, life) != life:
                await ps.delete(name, self._there.pop(name)[0])

    async def _is_there(self, ps: tc.Client, name: str, owner: str, seed: int | None) -> bool:
        try:
            net = await ps.attach(name, owner)
        except tc.errors.UnknownNameError:
            return False
        if seed is not None:
            torch.manual_seed(seed)
            if not same(dict(await net.state_dict()), dict(nn.Linear(3, 3).state_dict())):
                raise Violation(f"{name} on {owner} has other parameters than it was made with")
        return True
