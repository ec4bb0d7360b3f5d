"""Whatever trainers do while a checkpoint of an owner with a log is written is there after a kill."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.optim import lr_scheduler

import trainer_client as tc
from ps_service.durability.live.part_writing import MadeMeanwhileError
from ps_service.training.optimizers import HostedOptimizer
from tests.integration.restarting import TALLY, Owner, Tally
from tests.integration.restarts import test_killed
from tests.integration.restarts.conftest import Action, checkpoint
from tests.integration.restarts.test_killed import batch, one_pass
from tests.integration.support import bits
from tests.waiting import until

CLAMPED, NORMED = f"{test_killed.__name__}.Clamped", f"{test_killed.__name__}.Normed"


@pytest.fixture
async def owner(tmp_path: Path) -> AsyncIterator[Owner]:
    async with Owner(tmp_path, modules=[sys.modules[__name__], test_killed], durability="interval:0.01") as made:
        yield made


def everything(owner: Owner) -> dict[str, Any]:
    """The state of all objects of an owner."""
    found: dict[str, Any] = {}
    for hosted in owner.server.engine.registry.objects():
        value: Any = hosted.value
        if isinstance(value, HostedOptimizer):
            state: Any = [value.version, value.state_dict()]
        elif isinstance(value, nn.Module):
            state = [dict(value.state_dict()), [each.requires_grad for each in value.parameters()]]
        else:
            state = value.state_dict() if hasattr(value, "state_dict") else value
        found[hosted.ref.object_id] = [hosted.name, hosted.class_name, bits(state)]
    return found


def unnamed(owner: Owner) -> int:
    return sum(not each.name for each in owner.server.engine.registry.objects())


class Busy:
    """A trainer that does something at random at each turn."""

    def __init__(self, ps: tc.Client, seed: int) -> None:
        self.ps = ps
        self.random = random.Random(seed)
        self.count = 0
        self.kept: list[Any] = []

    async def begin(self, name: str) -> None:
        ps, self.name, self.is_named = self.ps, name, False
        self.clamped = await ps.module(CLAMPED, 4, 2, name="clamped", seed=1)
        self.normed = await ps.module(NORMED, name=name, seed=1)
        self.words = await ps.module(nn.Embedding, 200, 4, name="words", seed=1)
        self.adam = await ps.optimizer(
            optim.Adam, [*self.clamped.parameters(), *self.words.parameters()], lr=0.1, name="adam"
        )
        self.sgd = await ps.optimizer(
            optim.SGD, [*self.normed.parameters(), *self.words.parameters()], lr=0.1, momentum=0.9, name=f"{name}.sgd"
        )
        self.schedule = await ps.scheduler(lr_scheduler.StepLR, self.adam, 2, name="schedule")
        self.tally = await ps.create(TALLY, name="tally")
        self.own: list[Any] = []

    async def step_words(self) -> None:
        ids = torch.randint(200, (20,), generator=torch.Generator().manual_seed(self.count))
        async with self.ps.context() as ctx:
            await ctx.backward((await self.words(ids)).square().sum(), step=[self.adam, self.sgd][self.count % 2])

    async def step_both(self) -> None:
        async with self.ps.context() as ctx:
            loss = (await self.clamped(batch(self.count))).square().sum()
            loss = loss + (await self.normed(batch(self.count + 1))).square().sum()
            await ctx.backward(loss, step=[self.adam, self.sgd])

    async def make_and_train(self) -> None:
        net = await self.ps.module(nn.Linear, 4, 2, seed=self.count)
        opt = await self.ps.optimizer(optim.Adam, net.parameters(), lr=0.1)
        self.own.append((net, opt))
        await one_pass(self.ps, net, opt, self.count)

    async def train_own(self) -> None:
        for net, opt in self.own:
            await one_pass(self.ps, net, opt, self.count)

    async def replace(self) -> None:
        if self.is_named:
            await self.ps.delete(f"{self.name}.named")
        self.is_named = True
        await self.ps.module(nn.Linear, 4, 2 + self.count % 2, name=f"{self.name}.named", seed=self.count)

    async def drop(self) -> None:
        if self.own:
            self.own.pop(0)

    async def freeze(self) -> None:
        await self.clamped.parameter("bias").requires_grad_(self.count % 3 == 0)

    async def load(self) -> None:
        await self.clamped.load_state_dict({"weight": torch.full((2, 4), 0.5), "bias": torch.zeros(2)})

    async def keep(self) -> None:
        self.kept.append(self.clamped(batch(self.count)))

    async def turn(self) -> None:
        for _ in range(self.random.randrange(1, 5)):
            self.count += 1
            act: Any = self.random.choice(
                (
                    *(self.step_words, self.step_both, self.make_and_train, self.train_own, self.replace, self.drop),
                    *(self.freeze, self.load, self.keep, self.step_words, self.step_both, self.tally.add),
                    *(self.schedule.step, lambda: self.adam.set_options(lr=0.01 * self.count)),
                    *(lambda: self.clamped.clamp(0.4), lambda: self.normed(batch(self.count))),
                )
            )
            await act()


@pytest.mark.usefixtures("small_pieces")
async def test_at_random(owner: Owner, between: Callable[[Action], None]) -> None:
    async with tc.connect(owner.address) as one, tc.connect(owner.address) as other:
        trainers = [Busy(one, 0), Busy(other, 100)]
        for each, name in zip(trainers, ("one", "other"), strict=True):
            await each.begin(name)
            await each.turn()

        async def all_at_once() -> None:
            await asyncio.gather(*(each.turn() for each in trainers))

        between(all_at_once)
        for _ in range(2):
            await checkpoint(owner)
            await all_at_once()
            # What they have dropped is freed a little later.
            await until(lambda: unnamed(owner) == 2 * sum(len(each.own) for each in trainers))
            before = everything(owner)
            await owner.crash()
            assert everything(owner) == before
            for each in trainers:
                await each.step_both()
                await each.tally.add()
                for kept in each.kept:
                    assert (await kept).shape == (3, 2)


async def test_an_optimizer_for_what_is_not_written_yet_has_it_begin_again(
    owner: Owner, ps: tc.Client, between: Callable[[Action], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    net = await ps.module(nn.Linear, 4, 2, seed=1)
    opts, turns = [await ps.optimizer(optim.Adam, net.parameters(), lr=0.1)], 0
    begun_again = 0
    original = MadeMeanwhileError.__init__

    def made(self: MadeMeanwhileError) -> None:
        nonlocal begun_again
        begun_again += 1
        original(self)

    monkeypatch.setattr(MadeMeanwhileError, "__init__", made)

    async def change() -> None:
        nonlocal turns
        turns += 1
        if turns == 1:
            opts.append(await ps.optimizer(optim.SGD, net.parameters(), lr=0.1, momentum=0.9))
        for opt in opts:
            await one_pass(ps, net, opt, turns)

    between(change)
    await checkpoint(owner)
    assert begun_again == 1
    before = everything(owner)
    await owner.crash()
    assert everything(owner) == before


async def test_a_plain_object_in_a_call_is_waited_for(owner: Owner, ps: tc.Client) -> None:
    tally = await ps.create(TALLY, name="tally")
    await tally.add(3)
    await checkpoint(owner)
    await owner.crash()
    hosted = owner.server.engine.registry.named("tally")
    assert isinstance(hosted.value, Tally) and hosted.value.value == 3
