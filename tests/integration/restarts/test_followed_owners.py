"""Trainers, and owners that call other owners, go on where an owner has moved to."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn, optim

import trainer_client as tc
from tests.conftest import StartOwner
from tests.forking.process import Forking
from tests.integration.restarting import TALLY
from tests.integration.restarts.patience import PATIENCE_SECONDS
from tests.integration.support import COUNTER, bits
from tests.owner_processes import OwnerProcess, forked_owners
from tests.waiting import until

MODELS = ("--import", "tests.integration.restarting", "--import", "tests.hosted_models")
IMPATIENT = ("--import", "tests.integration.restarts.impatient")
NAMES = ("ps0", "ps1")


class Moving:
    """Two owners, of which ps0 keeps the directory, and ps1 moves."""

    def __init__(self, start: Callable[..., Awaitable[OwnerProcess]], folder: Path) -> None:
        self._start = start
        self._folder = folder
        self.owners: dict[str, OwnerProcess] = {}

    async def start(self, name: str, *flags: str) -> None:
        data = ("--data-dir", str(self._folder / name))
        self.owners[name] = await self._start("--name", name, *data, *MODELS, *flags)

    async def begin(self) -> None:
        await self.start("ps0", "--directory", "self")
        await self.start("ps1", "--directory", self.directory, *IMPATIENT)

    async def kill(self) -> None:
        self.owners["ps1"].process.kill()
        await self.owners["ps1"].process.wait()

    async def move(self) -> None:
        """As SIGKILL, and a start of the same state at another port."""
        await self.kill()
        await self.start("ps1", "--directory", self.directory)

    @property
    def directory(self) -> str:
        return self.owners["ps0"].address

    def find(self, name: str) -> str:
        return self.owners[name].address

    async def find_later(self, name: str) -> str:
        await asyncio.sleep(0)
        return self.owners[name].address


@pytest.fixture
async def moving(forking: Forking, tmp_path: Path) -> AsyncIterator[Moving]:
    async with forked_owners(forking) as start:
        moving = Moving(start, tmp_path)
        await moving.begin()
        yield moving


def batch(i: int) -> torch.Tensor:
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(i))


class Trainer:
    """Trains a layer on each owner, one behind the other."""

    def __init__(self, ps: tc.Client, nets: list[Any], opt: Any) -> None:
        self.ps, self.nets, self.opt = ps, nets, opt
        self.attempts = 0

    @classmethod
    async def begun(cls, ps: tc.Client) -> Trainer:
        nets = [await ps.module(nn.Linear, 4, 4, name=f"net-{name}", owner=name, seed=1) for name in NAMES]
        parameters = [each for net in nets for each in net.parameters()]
        return cls(ps, nets, await ps.optimizer(optim.Adam, parameters, lr=0.1))

    async def step(self, i: int, between: Callable[[], Awaitable[object]] | None = None) -> None:
        """One pass, which is repeated if it is lost. The handles are never asked for again."""

        async def one(ctx: tc.Context) -> None:
            nonlocal between
            self.attempts += 1
            loss = (await self.nets[1](await self.nets[0](batch(i)))).square().sum()
            if between is not None:
                action, between = between, None
                await action()
            await ctx.backward(loss)
            await self.opt.step(ctx)

        await self.ps.run(one)


def trained_here(batches: Iterable[int]) -> list[dict[str, Any]]:
    nets = []
    for _ in NAMES:
        torch.manual_seed(1)
        nets.append(nn.Linear(4, 4))
    opt = optim.Adam([each for net in nets for each in net.parameters()], lr=0.1)
    for i in batches:
        opt.zero_grad()
        nets[1](nets[0](batch(i))).square().sum().backward()
        opt.step()
    return [dict(net.state_dict()) for net in nets]


async def test_trainers_go_on_with_the_same_bits(moving: Moving) -> None:
    async with AsyncExitStack() as stack:
        ways: list[Any] = [moving.directory, moving.find, moving.find_later, ["127.0.0.1:1", moving.directory]]
        trainers = [
            await Trainer.begun(await stack.enter_async_context(tc.connect(*NAMES, directory=way))) for way in ways
        ]
        for i in range(5):
            # Between the passes of some, and in the middle of those of others.
            between = moving.move if i % 4 == 1 else None
            await trainers[i % 4].step(i, between)
            if i % 4 == 2:
                await moving.move()
        for trainer in trainers:
            assert [bits(await net.state_dict()) for net in trainer.nets] == [
                bits(each) for each in trained_here(range(5))
            ]
            assert trainer.ps.sessions["ps1"].losses == 0
        assert trainers[1].attempts == 2, "the pass that was open is lost once"


async def test_a_step_that_is_sent_while_its_owner_moves_counts_once(moving: Moving) -> None:
    async with tc.connect("ps1", directory=moving.directory) as ps:
        tally = await ps.create(TALLY, 0)
        await moving.kill()
        calls = [tally.add(1) for _ in range(8)]
        await moving.start("ps1", "--directory", moving.directory)
        assert sorted(await asyncio.gather(*calls)) == list(range(1, 9))
        assert await tally.add(0) == 8


async def test_hosted_code_finds_an_owner_that_has_moved(moving: Moving) -> None:
    async with tc.connect(*NAMES, directory=moving.directory) as ps:
        inner = await ps.module("torch.nn.Linear", 4, 4, owner="ps1", seed=1)
        outer = await ps.module("tests.hosted_models.Delegating", owner="ps0")
        opt = await ps.optimizer(optim.SGD, inner.parameters(), lr=0.1)

        async def one(ctx: tc.Context, i: int) -> None:
            await ctx.backward((await outer(batch(i), inner)).square().sum())
            await opt.step(ctx)

        await ps.run(one, 0)
        await moving.move()
        await ps.run(one, 1)
        torch.manual_seed(1)
        local, scale = nn.Linear(4, 4), torch.tensor(2.0)
        local_opt = optim.SGD(local.parameters(), lr=0.1)
        for i in range(2):
            local_opt.zero_grad()
            (scale * (batch(i) + local(batch(i)))).square().sum().backward()
            local_opt.step()
        assert bits(await inner.state_dict()) == bits(dict(local.state_dict()))


async def test_a_session_that_was_given_up_opens_again_and_handles_stay_good(moving: Moving) -> None:
    async with (
        tc.connect("ps1", directory=moving.directory, reconnect_timeout=0.1) as one,
        tc.connect("ps1", directory=moving.find, reconnect_timeout=0.1) as other,
    ):
        found = [(ps, await ps.create(TALLY, 0), ps.sessions["ps1"]) for ps in (one, other)]
        assert [await tally.add(1) for _, tally, _ in found] == [1, 1]
        await moving.kill()
        await until(lambda: all(session.state == "closed" for *_, session in found), 0.01)
        await moving.start("ps1", "--directory", moving.directory)
        for ps, tally, session in found:
            assert await tally.add(1) == 2
            assert (ps.sessions["ps1"], session.losses) == (session, 0)
            assert session.address == moving.find("ps1")


async def test_one_that_a_function_does_not_know_yet_is_waited_for(start_owner: StartOwner) -> None:
    owner = await start_owner("ps1")
    asked: list[str] = []

    def find(name: str) -> str:
        asked.append(name)
        if len(asked) < 3:
            raise LookupError("it is being placed")
        return owner.address

    async with tc.connect("ps1", directory=find) as ps:
        assert ps.owners == ["ps1"]
        assert await (await ps.create(COUNTER)).add(1) == 1
    assert asked == ["ps1"] * 3, "it is asked at each dial, and at no other time"
    with pytest.raises(tc.errors.UnavailableError, match="its address is not known: it is somewhere"):
        await tc.connect("ps1", directory=lambda _: _somewhere(), connect_timeout=0.05)


def _somewhere() -> str:
    raise LookupError("it is somewhere")


async def test_one_that_was_frozen_takes_no_step_when_it_goes_on(moving: Moving, tmp_path: Path) -> None:
    old, made = moving.owners["ps1"], [0, 1, 2, 3]
    async with tc.connect(*NAMES, directory=moving.directory) as ps:
        trainer = await Trainer.begun(ps)
        for i in made:
            await trainer.step(i)
        os.kill(old.process.pid, signal.SIGSTOP)
        frozen = time.monotonic()
        # A copy, so that its epoch does not tell the frozen one first.
        shutil.copytree(tmp_path / "ps1", tmp_path / "copy")
        # What is sent to the frozen one waits there, and is the first that it reads when it goes on.
        waits = asyncio.ensure_future(trainer.step(1000))
        await moving.start("ps1", "--directory", moving.directory, "--data-dir", str(tmp_path / "copy"))
        async with tc.connect(*NAMES, directory=moving.find) as ps2:
            other = await Trainer.begun(ps2)
            for _ in range(4):
                made.append(len(made))
                await other.step(made[-1])
            await until(lambda: time.monotonic() > frozen + PATIENCE_SECONDS + 0.2, 0.02)
            assert not waits.done()
            os.kill(old.process.pid, signal.SIGCONT)
            await waits
            await other.step(1001)
            _, said = await old.ended()
            assert old.process.returncode == 2 and f"has taken its place, at {moving.find('ps1')}" in said[-1]
            expected = [bits(each) for each in trained_here([*made, 1000, 1001])]
            for each in (trainer, other):
                assert [bits(await net.state_dict()) for net in each.nets] == expected
                assert each.ps.sessions["ps1"].losses == 0


async def test_one_that_was_frozen_and_not_replaced_goes_on(moving: Moving) -> None:
    async with tc.connect(*NAMES, directory=moving.directory) as ps:
        trainer = await Trainer.begun(ps)
        await trainer.step(0)
        os.kill(moving.owners["ps1"].process.pid, signal.SIGSTOP)
        frozen = time.monotonic()
        waits = asyncio.ensure_future(trainer.step(1))
        await until(lambda: time.monotonic() > frozen + PATIENCE_SECONDS + 0.2, 0.02)
        assert not waits.done()
        os.kill(moving.owners["ps1"].process.pid, signal.SIGCONT)
        await waits
        assert trainer.attempts == 2, "the open pass goes on"
        assert [bits(await net.state_dict()) for net in trainer.nets] == [bits(each) for each in trained_here(range(2))]
