"""Gradients of all trainers that make a step two by two: each is answered before its step is there, and counts once."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from typing import Any

from torch import nn, optim

import trainer_client as tc
from tests.crash.events import Action, Teller, Violation
from tests.crash.workloads.ordered import Ordered
from tests.crash.workloads.shared import Layer, loss_of
from tests.crash.workloads.workload import ATTEMPTS, Horizon, Workload, drawn

_POLICY = tc.policies.Quorum(2, reduce="sum")
_OPTIONS = {"lr": 0.05, "momentum": 0.9}


class Pairs:
    """A layer that steps with two gradients at a time, as it should be once the open round has ended."""

    def __init__(self, layer: Layer) -> None:
        self._layer = layer
        self._open: list[int] = []
        # A step was made of no gradient.
        self._is_wrong = False

    def apply(self, seed: int | None) -> None:
        """Adds a gradient to the open round; None ends it with the one that it has."""
        self._is_wrong |= seed is None and not self._open
        self._open += [] if seed is None else [seed]
        if seed is None or len(self._open) == 2:
            self.end_round()

    def end_round(self) -> None:
        """A step with the gradients that are there, if there are any."""
        for seed in self._open:
            self._layer.add(seed)
        if self._open:
            self._layer.step()
        self._open = []

    def state(self) -> Any:
        ended = copy.deepcopy(self)
        ended.end_round()
        return None if self._is_wrong else ended._layer.state()


class Quorums(Workload):
    """Passes with an optimizer that steps with any two gradients, in one or two requests."""

    name = "quorum"
    uses = ("ps1",)
    weight = 2.0

    async def prepare(self, ps: tc.Client, slot: int) -> None:
        self._net = await ps.module(nn.Linear, 4, 2, name="quorum", owner="ps1", seed=1)
        self._opt = await ps.optimizer(optim.SGD, self._net.parameters(), name="quorum-opt", policy=_POLICY, **_OPTIONS)

    async def step(self, ps: tc.Client, choose: random.Random, tell: Teller) -> None:
        seed, is_one = choose.randrange(1 << 30), choose.random() < 0.5
        number = tell.begin(self.name, seed=seed)

        async def attempt(ctx: tc.Context) -> tc.Stepped:
            tell.attempt(number)
            loss = loss_of(await self._net(drawn(seed, 3, 4)), seed)
            if is_one:
                return await ctx.backward(loss, step=self._opt)
            await ctx.backward(loss)
            return await self._opt.step(ctx)

        stepped = await ps.run(attempt, attempts=ATTEMPTS)
        version = None if stepped.repeated else stepped["ps1"]
        tell.done(number, version=version, counted=stepped.counted, dropped=stepped.dropped)

    async def begin(self, ps: tc.Client) -> None:
        await self.prepare(ps, 0)
        self._version = 0
        self._drains = 0
        self._ordered = Ordered("quorum on ps1", Pairs(Layer(optim.SGD, _OPTIONS)))

    def drained(self, owner: str) -> None:
        self._drains += owner in self.uses

    async def check(self, ps: tc.Client, actions: Sequence[Action], horizon: Horizon) -> None:
        await self.prepare(ps, 0)
        # Ends the open round: a gradient in it would be seen nowhere else.
        await self._opt.set_policy(_POLICY)
        status = await ps.status("ps1", most=1000)
        (version,) = [each.version for each in status.optimizers if each.name == "quorum-opt"]
        state = [await self._net.state_dict(), await self._opt.state_dict()]
        if horizon.lossy("ps1"):
            self._ordered.begin_at(0, Pairs(Layer(optim.SGD, _OPTIONS).load(state)))
        else:
            self._follow(version - self._version, state, actions)
        self._version, self._drains = version, 0

    def _follow(self, steps: int, state: Any, actions: Sequence[Action]) -> None:
        """Follows to a state so many steps later: that of the gradients in some order, of which the last step may have
        one alone, and one for each drain. Raises `Violation`."""
        known, must, may = {}, [], list[int | None]([None] * self._drains)
        for each in actions:
            seed = each.what["seed"]
            if not each.is_done:
                may.append(seed)
            elif each.result["dropped"]:
                raise Violation(f"quorum on ps1 has dropped a gradient: {each}")
            elif each.result["version"] is None:
                must.append(seed)
            else:
                # It was the first of a step that was not there yet, or the second, which completed it.
                place = 2 * (each.result["version"] - self._version) + (each.result["counted"] == 0)
                if place in known:
                    raise Violation(f"quorum on ps1: two gradients were acknowledged at place {place}: {each}")
                known[place] = seed
        found = Violation(f"quorum on ps1 has made {steps} steps, and has not their gradients")
        for gradients in {2 * steps, max(0, 2 * steps - 1)}:
            try:
                self._ordered.follow(gradients, state, known, must, may)
            except Violation as error:
                found = error
                continue
            break
        else:
            raise found
        reference = self._ordered.reference
        reference.end_round()
        self._ordered.begin_at(0, reference)
