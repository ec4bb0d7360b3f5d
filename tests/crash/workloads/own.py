"""What each trainer does to objects of its own, one after the other: all kinds of changes, also of torch's generator.

A pass of a killed owner is lost, but what its forward has changed may stay: running statistics, and the random numbers
that it has drawn. So the harness follows all states that the objects may have, and drops those that an answer excludes.
"""

from __future__ import annotations

import copy
import random
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn, optim
from torch.optim import lr_scheduler

import trainer_client as tc
from tests.crash import hosted
from tests.crash.events import Action, Teller, Violation
from tests.crash.workloads.workload import ATTEMPTS, Horizon, Workload, drawn, same

_GENERATOR = f"{hosted.MODULE}.generator"
_MOST = 256


def loss_of(output: torch.Tensor, seed: int) -> torch.Tensor:
    """A loss that is not linear."""
    return (output - drawn(seed + 1, 6, 2)).square().mean()


class Objects:
    """The objects of a trainer as they should be, with the generator that the network draws from."""

    def __init__(self, cls: Any, options: dict[str, Any], drops: bool, generator: torch.Tensor) -> None:
        torch.manual_seed(1)
        self.net = hosted.Deep(drops)
        self.opt = cls(self.net.parameters(), **options)
        self.schedule = lr_scheduler.ExponentialLR(self.opt, 0.99)
        self.version = 0
        self.generator = generator
        self.drops = drops

    def forward(self, seed: int) -> torch.Tensor:
        """The loss of a batch."""
        torch.set_rng_state(self.generator)
        loss = loss_of(self.net(drawn(seed, 6, 4)), seed)
        self.generator = torch.get_rng_state()
        return loss

    def draw(self, seed: int) -> None:
        """What a forward draws, without what else it changes."""
        torch.set_rng_state(self.generator)
        nn.Dropout(0.5)(torch.ones(6, 8))
        self.generator = torch.get_rng_state()

    def step(self, loss: torch.Tensor) -> None:
        loss.backward()
        self.opt.step()
        self.opt.zero_grad()
        self.version += 1

    def change(self, what: dict[str, Any]) -> None:
        """What an action other than a pass does."""
        match what["kind"]:
            case "schedule":
                with warnings.catch_warnings():
                    # A scheduler that was copied does not know the optimizer that was copied with it.
                    warnings.simplefilter("ignore")
                    self.schedule.step()
            case "options":
                for group in self.opt.param_groups:
                    group["weight_decay"] = what["value"]
            case "load":
                self.net.load_state_dict(loaded(what["seed"]))
            case "freeze":
                self.net.first.bias.requires_grad_(what["value"])
            case "clamp":
                self.net.clamp(what["value"])

    def whole(self) -> Any:
        """All that its later states depend on."""
        return [self.state(), self.net.first.bias.requires_grad]

    def state(self) -> Any:
        """What the owner tells of it."""
        found = [dict(self.net.state_dict()), self.opt.state_dict(), self.schedule.state_dict(), self.version]
        return [*found, self.generator if self.drops else None]


def loaded(seed: int) -> dict[str, torch.Tensor]:
    """A state of the network."""
    state = dict(hosted.Deep(False).state_dict())
    return {
        name: drawn(seed + at, *each.shape).abs() if each.is_floating_point() else torch.tensor(seed % 100)
        for at, (name, each) in enumerate(state.items())
    }


class Own(Workload):
    """One network for each of three trainers; two of them draw, each on an owner of its own."""

    name = "own"
    weight = 3.0
    _kinds = (
        (optim.SGD, {"lr": 0.05, "momentum": 0.9, "nesterov": True}),
        (optim.Adam, {"lr": 0.01}),
        (optim.AdamW, {"lr": 0.01, "amsgrad": True}),
    )

    async def prepare(self, ps: tc.Client, slot: int) -> None:
        await self._attach(ps, slot)

    async def _attach(self, ps: tc.Client, slot: int) -> None:
        cls, options = self._kinds[slot % 3]
        self._owner, name = f"ps{slot % 2}", f"own-{slot}"
        self._net = await ps.module(f"{hosted.MODULE}.Deep", slot < 2, name=name, owner=self._owner, seed=1)
        self._opt = await ps.optimizer(cls, self._net.parameters(), name=f"{name}-opt", **options)
        self._schedule = await ps.scheduler(lr_scheduler.ExponentialLR, self._opt, 0.99, name=f"{name}-schedule")

    async def step(self, ps: tc.Client, choose: random.Random, tell: Teller) -> None:
        seed = choose.randrange(1 << 30)
        kind = choose.choices(["pass", "schedule", "options", "load", "freeze", "clamp"], [9, 2, 2, 2, 2, 2])[0]
        if kind == "pass":
            await self._pass(ps, seed, choose.random() < 0.5, tell)
            return
        values = {
            "options": choose.choice([0.0, 0.01]),
            "freeze": choose.random() < 0.7,
            "clamp": choose.random() + 0.1,
        }
        number = tell.begin(self.name, kind=kind, seed=seed, value=values.get(kind))
        match kind:
            case "schedule":
                await self._schedule.step()
            case "options":
                await self._opt.set_options(weight_decay=values[kind])
            case "load":
                await self._net.load_state_dict(loaded(seed))
            case "freeze":
                await self._net.parameter("first.bias").requires_grad_(values[kind])
            case "clamp":
                await self._net.clamp(values[kind])
        tell.done(number)

    async def _pass(self, ps: tc.Client, seed: int, is_one: bool, tell: Teller) -> None:
        number = tell.begin(self.name, kind="pass", seed=seed)

        async def attempt(ctx: tc.Context) -> dict[str, Any]:
            tell.attempt(number)
            loss = loss_of(await self._net(drawn(seed, 6, 4)), seed)
            if is_one:
                stepped = await ctx.backward(loss, step=self._opt)
            else:
                await ctx.backward(loss)
                stepped = await self._opt.step(ctx)
            return {"loss": loss.item().hex(), "version": stepped[self._owner], "repeated": stepped.repeated}

        tell.done(number, **await ps.run(attempt, attempts=ATTEMPTS))

    async def begin(self, ps: tc.Client) -> None:
        self._may: list[list[Objects]] = []
        for slot in range(3):
            await self._attach(ps, slot)
            generator = await ps.call(_GENERATOR, owner=self._owner)
            cls, options = self._kinds[slot % 3]
            self._may.append([Objects(cls, options, slot < 2, generator)])

    async def check(self, ps: tc.Client, actions: Sequence[Action], horizon: Horizon) -> None:
        for slot in range(3):
            await self._attach(ps, slot)
            status = await ps.status(self._owner, most=1000)
            (version,) = [each.version for each in status.optimizers if each.name == f"own-{slot}-opt"]
            generator = await ps.call(_GENERATOR, owner=self._owner) if slot < 2 else None
            states = [await self._net.state_dict(), await self._opt.state_dict(), await self._schedule.state_dict()]
            found = [*states, version, generator]
            may = self._follow(slot, [each for each in actions if each.slot == slot], horizon)
            left = [each for each in may if same(each.state(), found)]
            if not left:
                raise Violation(
                    f"own-{slot} has version {version}, which none of {len(may)} states has that its actions allow "
                    f"(versions {sorted({each.version for each in may})}): found {found}, and for instance "
                    f"{may[0].state()}; actions {actions[-3:]}"
                )
            self._may[slot] = left  # they may differ in what is not asked for

    def _follow(self, slot: int, actions: Sequence[Action], horizon: Horizon) -> list[Objects]:
        """The states that are possible after some actions."""
        states, at_all = self._may[slot], []
        for action in actions:
            if action.is_done and horizon.may_be_lost(action, f"ps{slot % 2}"):
                # Also a part of it may be left.
                undone = replace(action, result=None)
                at_all += _different([each for state in states for each in _after(state, undone)])
            after = [each for state in states for each in _after(state, action)]
            states = _different(after)
            if not states:
                raise Violation(f"the answer of an action of own-{slot} is none that it may have: {action}")
            if len(states) > _MOST:
                raise Violation(f"own-{slot} may have more than {_MOST} states")
        return _different([*states, *at_all])


def _after(state: Objects, action: Action) -> Iterator[Objects]:
    """The states that an action may leave behind."""
    what = action.what
    if what["kind"] != "pass":
        changed = copy.deepcopy(state)
        changed.change(what)
        yield changed
        if not action.is_done:
            yield state
        return
    result = action.result
    lost = [(state, False)]
    for _ in range(action.attempts - action.is_done):
        lost = [each for before, stepped in lost for each in _lost_attempt(before, what["seed"], stepped)]
    if result is None:
        yield from (each for each, _ in lost)
        return
    for before, stepped in lost:
        if stepped != result["repeated"]:
            continue
        made = copy.deepcopy(before)
        loss = made.forward(what["seed"])
        if loss.item().hex() != result["loss"]:
            continue
        if not stepped:
            made.step(loss)
        if made.version == result["version"]:
            yield made


def _lost_attempt(state: Objects, seed: int, stepped: bool) -> Iterator[tuple[Objects, bool]]:
    """What an attempt of a pass leaves behind whose owner was killed, or its trainer; and whether it has stepped."""
    yield state, stepped
    if state.drops:
        drawn_only = copy.deepcopy(state)
        drawn_only.draw(seed)
        yield drawn_only, stepped
    forward = copy.deepcopy(state)
    loss = forward.forward(seed)
    if not stepped:
        whole = copy.deepcopy(state)
        whole.step(whole.forward(seed))
        yield whole, True
    del loss
    yield forward, stepped


def _different(states: Sequence[Objects]) -> list[Objects]:
    left: list[Objects] = []
    for each in states:
        if not any(same(each.whole(), other.whole()) for other in left):
            left.append(each)
    return left
