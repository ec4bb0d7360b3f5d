"""Steps and pushes of all trainers on the same layers, with one optimizer.

The gradient of a linear layer does not depend on its parameters, so that a step is the same whatever came before it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from typing import Any, Self

import torch
from torch import nn

import trainer_client as tc
from tests.crash.events import Action, Teller, Violation
from tests.crash.workloads.ordered import Ordered
from tests.crash.workloads.workload import ATTEMPTS, Horizon, Workload, drawn


def loss_of(output: torch.Tensor, seed: int) -> torch.Tensor:
    """A loss that is linear in the output of a layer."""
    return (output * drawn(seed + 1, 3, 2)).sum()


class Layer:
    """A layer and its optimizer here, as they should be on an owner."""

    def __init__(self, cls: Any, options: dict[str, Any]) -> None:
        torch.manual_seed(1)
        self.net = nn.Linear(4, 2)
        self.opt = cls(self.net.parameters(), **options)

    def apply(self, seed: int) -> None:
        """A step with the gradients of a batch."""
        self.add(seed)
        self.step()

    def add(self, seed: int) -> None:
        """Adds the gradients of a batch to those of the next step."""
        loss_of(self.net(drawn(seed, 3, 4)), seed).backward()

    def step(self) -> None:
        """A step with the gradients that were added."""
        self.opt.step()
        self.opt.zero_grad()

    def state(self) -> Any:
        return [dict(self.net.state_dict()), self.opt.state_dict()]

    def load(self, state: Any) -> Self:
        """Has the state of an owner from now on."""
        self.net.load_state_dict(state[0])
        self.opt.load_state_dict(state[1])
        return self


class Shared(Workload):
    """Passes over one owner or two, in one or two requests, and, over one, pushes of a replica."""

    weight = 3.0

    def __init__(
        self, name: str, uses: Sequence[str], cls: Any, policy: tc.policies.Policy | None = None, **options: Any
    ) -> None:
        self.name = name
        self._policy = policy
        self.uses = uses
        self._cls = cls
        self._options = options
        # There are rounds over several owners.
        self._is_over_owners = policy is not None and len(uses) > 1

    async def prepare(self, ps: tc.Client, slot: int) -> None:
        await self._attach(ps)
        self._replica = await self._nets[0].replica() if len(self.uses) == 1 else None

    async def _attach(self, ps: tc.Client) -> None:
        self._nets = [
            await ps.module(nn.Linear, 4, 2, name=f"{self.name}-{owner}", owner=owner, seed=1) for owner in self.uses
        ]
        parameters = [each for net in self._nets for each in net.parameters()]
        made = partial(ps.optimizer, self._cls, parameters, policy=self._policy, **self._options)
        try:
            self._opt = await made(name=f"{self.name}-opt")
        except tc.errors.SessionLostError as error:
            # A machine has lost its power, and what was not synced. The check says whether it might lose that.
            if "has gone back" not in str(error):
                raise
            self._opt = await made(name=f"{self.name}-opt")

    async def step(self, ps: tc.Client, choose: random.Random, tell: Teller) -> None:
        seed = choose.randrange(1 << 30)
        if self._replica is not None and choose.random() < 0.3:
            number = tell.begin(self.name, seed=seed)
            loss_of(self._replica(drawn(seed, 3, 4)), seed).backward()
            self._told(tell, number, await self._replica.push(self._opt), 1)
            return
        number, attempts, is_one = tell.begin(self.name, seed=seed), 0, choose.random() < 0.5

        async def attempt(ctx: tc.Context) -> Any:
            nonlocal attempts
            attempts += 1
            tell.attempt(number)
            x = drawn(seed, 3, 4)
            loss = sum(loss_of(output, seed) for output in [await net(x) for net in self._nets])
            if is_one:
                return await ctx.backward(loss, step=self._opt)
            await ctx.backward(loss)
            return await self._opt.step(ctx)

        self._told(tell, number, await ps.run(attempt, attempts=ATTEMPTS), attempts)

    def _told(self, tell: Teller, number: int, stepped: Any, attempts: int) -> None:
        # One owner may have applied it in an attempt before, whose version is not known.
        is_known = not stepped.repeated and (attempts == 1 or len(self.uses) == 1)
        told = {"counted": stepped.counted, "repeated": stepped.repeated, "told": dict(stepped), "attempts": attempts}
        tell.done(number, versions=dict(stepped) if is_known else None, **told)

    async def begin(self, ps: tc.Client) -> None:
        await self._attach(ps)
        self._ordered = {
            owner: Ordered(f"{self.name} on {owner}", Layer(self._cls, self._options)) for owner in self.uses
        }
        # Of rounds: steps of the first owner that a later step brings to another one. Their trainers were killed.
        self._behind: dict[str, list[int]] = {owner: [] for owner in self.uses}
        self._had_lost = False

    async def check(self, ps: tc.Client, actions: Sequence[Action], horizon: Horizon) -> None:
        await self._attach(ps)
        states = await self._opt.state_dict()
        made: list[int] = []
        # An owner that has lost steps makes them again when it is told of a later one, as far as it still holds the
        # gradients.
        has_lost = self._is_over_owners and any(map(horizon.lossy, self.uses))
        is_unknown = has_lost or self._had_lost
        self._had_lost = has_lost or (self._had_lost and not any(each.is_done for each in actions))
        for place, (owner, net) in enumerate(zip(self.uses, self._nets, strict=True)):
            version, state = await self._of(ps, owner, net, states, place)
            if is_unknown:
                self._ordered[owner].begin_at(version, Layer(self._cls, self._options).load(state))
                self._behind[owner].clear()
                continue
            known, must, may, earliest = {}, [], [*self._behind[owner]], 0
            for each in actions:
                seed = each.what["seed"]
                if not each.is_done:
                    may.append(seed)
                elif (versions := each.result["versions"]) is None:
                    (may if horizon.may_be_lost(each, owner) else must).append(seed)
                elif versions[owner] in known:
                    raise Violation(
                        f"{self.name} on {owner}: two steps were acknowledged with version {versions[owner]}, those "
                        f"of {known[versions[owner]]} and {seed}"
                    )
                else:
                    known[versions[owner]] = seed
                    if horizon.may_be_lost(each, owner):
                        earliest = min(earliest or versions[owner], versions[owner])
            if horizon.lossy(owner):
                earliest = earliest or 1 << 60
            found = self._ordered[owner].follow(version, state, known, must, may, earliest)
            if place and self._is_over_owners:
                self._behind[owner] = [each for each in [*self._behind[owner], *made] if each not in found]
            made = made or [each for each in found if each in may]

    async def _of(self, ps: tc.Client, owner: str, net: Any, states: Any, place: int) -> tuple[int, Any]:
        """The version of the optimizer on an owner, with the states of layer and optimizer."""
        status = await ps.status(owner, most=1000)
        (version,) = [each.version for each in status.optimizers if each.name == f"{self.name}-opt"]
        if len(self.uses) > 1:
            kept = {index - 2 * place: each for index, each in states["state"].items() if index // 2 == place}
            (group,) = states["param_groups"]
            states = {"state": kept, "param_groups": [{**group, "params": [0, 1]}]}
        return version, [await net.state_dict(), states]
