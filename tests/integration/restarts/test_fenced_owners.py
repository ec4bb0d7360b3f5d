"""Two owners on one data directory, where no lock holds or one waits for the other."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import torch

import trainer_client as tc
from tests.forking.process import Forking
from tests.owner_processes import StartOwner, forked_owners
from tests.waiting import until

X = torch.ones(1, 2)


@pytest.fixture
async def start(forking: Forking) -> AsyncIterator[StartOwner]:
    async with forked_owners(forking) as start:
        yield start


async def attach(ps: tc.Client) -> tuple[tc.Module, tc.Optimizer]:
    net = await ps.module("torch.nn.Linear", 2, 1, name="net", seed=0)
    return net, await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1)


async def step(ps: tc.Client, net: tc.Module, opt: tc.Optimizer) -> int:
    async with ps.context() as ctx:
        return dict(await ctx.backward((await net(X)).square().sum(), step=opt))["ps0"]


@pytest.mark.parametrize("durability", ["always", "interval:0.2"])
async def test_only_one_of_two_acknowledges_what_is_kept(start: StartOwner, tmp_path: Path, durability: str) -> None:
    imports = ("--import", "tests.no_locks", "--import", "tests.integration.restarts.impatient")
    flags = (*imports, "--data-dir", str(tmp_path / "data"), "--log-format", "text")
    first = await start(*flags, "--durability", durability)
    async with tc.connect(first.address, reconnect_timeout=0.5, connect_timeout=5) as early:
        net, opt = await attach(early)
        assert [await step(early, net, opt) for _ in range(3)] == [1, 2, 3]
        await early.durable()
        first.process.send_signal(signal.SIGSTOP)
        second = await start(*flags, "--durability", durability)
        async with tc.connect(second.address) as late:
            later = await attach(late)
            assert [await step(late, *later) for _ in range(2)] == [4, 5]
            # What reaches the first one now is answered, if at all, when it runs again.
            unanswered = asyncio.ensure_future(step(early, net, opt))
            await until(lambda: early.sessions["ps0"].requests.window.requests)
            first.process.send_signal(signal.SIGCONT)
            with pytest.raises(tc.PsError):
                await unanswered
            assert any("another owner has taken the data directory" in line for line in (await first.ended())[1])
            assert first.process.returncode == 2
            assert await step(late, *later) == 6
            parameters = (await later[0].state_dict())["weight"]
        second.process.kill()
        await second.ended()
    third = await start(*flags)
    async with tc.connect(third.address) as ps:
        net, opt = await attach(ps)
        assert torch.equal((await net.state_dict())["weight"], parameters)
        assert await step(ps, net, opt) == 7


async def test_one_that_waits_follows_the_one_before(start: StartOwner, tmp_path: Path) -> None:
    flags = ("--data-dir", str(tmp_path / "data"), "--log-format", "text")
    first = await start(*flags)
    async with tc.connect(first.address) as ps:
        assert await step(ps, *await attach(ps)) == 1
    refused = await start(*flags)
    assert any("another owner uses the data directory" in line for line in (await refused.ended())[1])
    assert refused.process.returncode == 2
    waiting = asyncio.ensure_future(start(*flags, "--wait-for-data-dir", "60"))
    first.process.send_signal(signal.SIGTERM)
    second = await waiting
    assert second.address
    async with tc.connect(second.address) as ps:
        assert await step(ps, *await attach(ps)) == 2


async def test_one_that_waits_can_be_stopped(forking: Forking, start: StartOwner, tmp_path: Path) -> None:
    flags = ("--data-dir", str(tmp_path / "data"), "--log-format", "text")
    first = await start(*flags)
    listen = ("--listen", "127.0.0.1:0", "--wait-for-data-dir", "60")
    process = await forking.begin("ps_service", "serve", *listen, *flags, errors=True)
    try:
        while b"it is waited for" not in (line := await process.stderr.readline()):
            assert line
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(50):
            assert await process.wait() == 0
    finally:
        await process.aclose()
    assert first.process.returncode is None
