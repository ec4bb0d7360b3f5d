"""Tests of rounds when an owner drains or starts again: who waits is told at once, nothing counts twice."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn, optim

import trainer_client as tc
from ps_wire.compression.choice import Choice
from tests.forking.process import Forking
from tests.integration.restarting import Owner
from tests.integration.spanning import Trainer, batches, begun, held, hosted, local, same_nets, together, waiting
from tests.owner_processes import StartOwner, forked_owners
from tests.waiting import until

DRAIN_SECONDS = 60.0
"""Longer than a test may take: a drain that waits for a round fails it."""


@pytest.fixture
async def start(forking: Forking) -> AsyncIterator[StartOwner]:
    async with forked_owners(forking) as start:
        yield start


async def group(stack: AsyncExitStack, places: list[Owner], count: int, policy: tc.policies.Policy) -> list[Trainer]:
    """Trainers of a layer on each of these owners."""
    made = []
    for _ in range(count):
        client = await stack.enter_async_context(tc.connect(*(each.address for each in places)))
        made.append(await begun(client, [each.name for each in places], policy))
    return made


def learn(net: nn.Module, opt: optim.Optimizer, xs: list[torch.Tensor]) -> None:
    opt.zero_grad()
    net(torch.cat(xs)).square().mean().backward()
    opt.step()


async def owners(stack: AsyncExitStack, folder: Path, count: int) -> list[Owner]:
    names = [f"ps{place}" for place in range(count)]
    return [await stack.enter_async_context(Owner(folder / name, name)) for name in names]


@pytest.mark.parametrize(("count", "drained"), [(1, 0), (2, 0), (2, 1)], ids=["alone", "decides", "follows"])
async def test_a_step_that_waits_ends_when_an_owner_drains_and_counts_nowhere(
    tmp_path: Path, count: int, drained: int
) -> None:
    async with AsyncExitStack() as stack:
        places = await owners(stack, tmp_path, count)
        trainers = await group(stack, places, 3, tc.policies.Sync(3))
        net, opt = await local(trainers[0])
        xs = batches(3)
        waits = [asyncio.create_task(each.step(x)) for each, x in zip(trainers[:2], xs, strict=False)]
        await until(lambda: waiting(places[0].server) == 2)
        async with asyncio.timeout(50):
            await places[drained].restart(DRAIN_SECONDS)
        errors = await asyncio.gather(*waits, return_exceptions=True)
        assert [type(each) for each in errors] == [tc.errors.DrainingError] * 2, errors
        assert all("nothing was applied" in str(each) for each in errors)
        await same_nets(trainers[0], net)
        found = await together(*(each.step(x) for each, x in zip(trainers, xs, strict=True)))
        assert [each.counted for each in found] == [3] * 3
        learn(net, opt, xs)
        await same_nets(trainers[0], net)
        await until(lambda: not any(held(each.server) for each in places[1:]))


async def test_a_step_that_waits_after_it_is_applied_gets_its_result(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        (owner,) = await owners(stack, tmp_path, 1)
        fast, _ = await group(stack, [owner], 2, tc.policies.BoundedStaleness(0))
        ahead = asyncio.create_task(fast.step(batches(1)[0]))
        await until(lambda: hosted(owner.server).version == 1)
        async with asyncio.timeout(50):
            await owner.restart(DRAIN_SECONDS)
        assert await ahead == {"ps0": 1}


@pytest.mark.parametrize("durable", [True, False])
async def test_a_drain_refuses_waits_of_later_steps_and_of_later_holds(tmp_path: Path, durable: bool) -> None:
    async with AsyncExitStack() as stack:
        places = await owners(stack, tmp_path, 2)
        one, _ = await group(stack, places, 2, tc.policies.Sync(2))
        ctx = one.client.context()
        async with ctx:
            await ctx.backward(await one.loss(batches(1)[0]))
            draining = [asyncio.create_task(each.server.quiet(DRAIN_SECONDS)) for each in places[1 - durable :]]
            await until(lambda: all(each.server.engine.draining for each in places[1 - durable :]))
            with pytest.raises(tc.errors.DrainingError):
                await one.opt.step(ctx)
            # The pass may go on: its gradients are still there.
            assert len(await ctx.get_gradients()) == 4
        async with asyncio.timeout(50):
            await asyncio.gather(*draining)


async def test_a_push_that_waits_keeps_what_its_codec_left_out(tmp_path: Path) -> None:
    async with Owner(tmp_path / "ps0") as owner, tc.connect(owner.address) as ps, tc.connect(owner.address) as other:
        net = await ps.module("torch.nn.Linear", 3, 3, name="net", seed=0)
        opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1, policy=tc.policies.Sync(2))
        replica = await net.replica(compress=Choice(tc.codecs.TopK(0.3), min_numel=0))
        net2 = await other.module("torch.nn.Linear", 3, 3, name="net", seed=0)
        opt2 = await other.optimizer(optim.SGD, net2.parameters(), lr=0.1, policy=None)
        replica2 = await net2.replica()

        async def both(value: float) -> None:
            for each in (replica, replica2):
                each(torch.full((1, 3), value)).sum().backward()
            await asyncio.gather(replica.push(opt), replica2.push(opt2))

        await both(1.0)
        assert replica.exchange._feedback is not None
        kept = replica.exchange._feedback.state_dict()["residuals"]
        replica(torch.ones(1, 3)).sum().backward()
        push = asyncio.ensure_future(_pushed(replica, opt))
        await until(lambda: waiting(owner.server) == 1)
        async with asyncio.timeout(50):
            await owner.restart(DRAIN_SECONDS)
        with pytest.raises(tc.errors.DrainingError):
            await push
        now = replica.exchange._feedback.state_dict()["residuals"]
        assert now.keys() == kept.keys() and all(torch.equal(now[name], kept[name]) for name in kept)
        await both(2.0)
        assert hosted(owner.server).version == 2


async def _pushed(replica: tc.Replica, opt: tc.DistributedOptimizer) -> None:
    await replica.push(opt)


async def test_a_push_during_a_drain_waits_for_the_next_start(tmp_path: Path) -> None:
    async with Owner(tmp_path / "ps0") as owner, tc.connect(owner.address) as ps, tc.connect(owner.address) as other:
        net = await ps.module("torch.nn.Linear", 3, 3, name="net", seed=0)
        opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1, policy=tc.policies.Sync(1))
        replica = await net.replica()
        async with other.context() as ctx:
            attached = await other.attach("net")
            loss = (await attached(torch.ones(1, 3))).sum()  # type: ignore[operator]
            draining = asyncio.create_task(owner.restart(DRAIN_SECONDS))
            await until(lambda: owner.server.engine.draining)
            replica(torch.ones(1, 3)).sum().backward()
            push = replica.push(opt)
            await ctx.backward(loss)
            assert not push.done()
        await draining
        assert (await push) == {"ps0": 1}


@pytest.mark.parametrize("drained", [0, 1])
async def test_sigterm_of_a_process_does_not_wait_for_a_round(start: StartOwner, tmp_path: Path, drained: int) -> None:
    flags = [["--name", f"ps{place}", "--data-dir", str(tmp_path / f"{place}")] for place in range(2)]
    seconds = ["--drain-seconds", str(DRAIN_SECONDS)]
    processes = await asyncio.gather(*(start(*each, *seconds) for each in flags))
    async with AsyncExitStack() as stack:
        made = []
        for _ in range(2):
            client = await stack.enter_async_context(tc.connect(*(each.address for each in processes)))
            made.append(await begun(client, ["ps0", "ps1"], tc.policies.Sync(2)))
        one, two = made
        net, opt = await local(one)
        xs = batches(2)
        wait = asyncio.create_task(one.step(xs[0]))
        async with asyncio.timeout(50):
            while not (await two.client.status("ps0")).optimizers[0].waiting_for:
                pass
        processes[drained].process.send_signal(signal.SIGTERM)
        _, lines = await processes[drained].ended()  # within 30 s
        assert processes[drained].process.returncode == 0, lines
        with pytest.raises(tc.errors.DrainingError):
            await wait
        again = await start(*flags[drained], *seconds, "--listen", processes[drained].address)
        assert again.address == processes[drained].address
        found = await together(one.step(xs[0]), two.step(xs[1]))
        assert found == [{"ps0": 1, "ps1": 1}] * 2
        learn(net, opt, xs)
        await same_nets(one, net)


class Replicated(NamedTuple):
    """A trainer with replicas of a layer on each of two owners."""

    model: tc.Replicas
    opt: tc.DistributedOptimizer

    async def push(self) -> tc.Stepped | None:
        self.model(torch.ones(1, 3)).sum().backward()
        return await self.model.push(self.opt)


async def replicated(ps: tc.Client, policy: tc.policies.Policy) -> Replicated:
    trainer = await begun(ps, ["ps0", "ps1"], policy)
    return Replicated(ps.replicas(nn.Sequential(*[await net.replica() for net in trainer.nets])), trainer.opt)


@pytest.mark.parametrize("drained", [0, 1])
async def test_a_push_to_several_owners_waits_for_no_round_when_one_drains(tmp_path: Path, drained: int) -> None:
    async with AsyncExitStack() as stack:
        places = await owners(stack, tmp_path, 2)
        clients = [await stack.enter_async_context(tc.connect(*(each.address for each in places))) for _ in range(2)]
        one, two = [await replicated(ps, tc.policies.Sync(2)) for ps in clients]
        wait = asyncio.create_task(one.push())
        await until(lambda: waiting(places[0].server) == 1)
        async with asyncio.timeout(50):
            await places[drained].restart(DRAIN_SECONDS)
        with pytest.raises(tc.errors.DrainingError):
            await wait
        assert await asyncio.gather(one.push(), two.push()) == [{"ps0": 1, "ps1": 1}] * 2


@pytest.mark.parametrize("drained", [0, 1])
async def test_a_push_to_several_owners_does_not_hold_up_a_drain(tmp_path: Path, drained: int) -> None:
    async with AsyncExitStack() as stack:
        places = await owners(stack, tmp_path, 2)
        ps, other = [await stack.enter_async_context(tc.connect(*(each.address for each in places))) for _ in range(2)]
        one = await replicated(ps, tc.policies.Sync(1))
        async with other.context() as ctx:
            net: Any = await other.attach(f"net-ps{drained}", owner=f"ps{drained}")
            loss = (await net(torch.ones(1, 3))).sum()
            draining = asyncio.create_task(places[drained].restart(DRAIN_SECONDS))
            await until(lambda: places[drained].server.engine.draining)
            push = asyncio.create_task(one.push())
            await other.status(f"ps{1 - drained}")
            await ctx.backward(loss)
        async with asyncio.timeout(50):
            await draining
            # It is sent again, with what follows it.
            assert await push == {"ps0": 1, "ps1": 1}


# Which trainers a round waits for after a restart


@pytest.mark.parametrize("count", [1, 2], ids=["alone", "over owners"])
async def test_a_round_of_all_trainers_waits_for_those_of_before_the_restart(tmp_path: Path, count: int) -> None:
    async with AsyncExitStack() as stack:
        places = await owners(stack, tmp_path, count)
        trainers = await group(stack, places, 3, tc.policies.Sync())
        net, opt = await local(trainers[0])
        for turn in range(2):
            xs = batches(3 * turn + 3)[-3:]
            first = asyncio.create_task(trainers[0].step(xs[0]))
            await until(lambda: waiting(places[0].server) == 1)
            assert not first.done()
            found = await together(first, *(each.step(x) for each, x in zip(trainers[1:], xs[1:], strict=True)))
            assert [each.counted for each in found] == [3] * 3
            learn(net, opt, xs)
            await same_nets(trainers[0], net)
            for place in places:
                await place.restart()
            assert len(hosted(places[0].server).trainers) == 3


async def test_a_round_after_a_restart_does_not_wait_for_a_trainer_that_does_not_come_back(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        (owner,) = await owners(stack, tmp_path, 1)
        one, two, gone = await group(stack, [owner], 3, tc.policies.Sync(3))
        await together(*(each.step(x) for each, x in zip((one, two, gone), batches(3), strict=True)))
        await owner.server.drain(DRAIN_SECONDS)
        closing = asyncio.create_task(gone.client.close())
        await owner.start()
        await asyncio.gather(closing, return_exceptions=True)
        sessions = owner.server.engine.sessions
        steps = [asyncio.create_task(each.step(x)) for each, x in zip((one, two), batches(2), strict=True)]
        await until(lambda: waiting(owner.server) == 2)
        lost = sessions.get(gone.client.trainer)
        if lost is not None:
            assert not any(each.done() for each in steps) and not lost.streams
            lost._seen -= 1e9  # its lease has run out
            owner.server.servicer.sweep()
        assert [each.counted for each in await asyncio.gather(*steps)] == [2, 2]


async def test_those_that_had_left_before_a_restart_are_not_waited_for_after_it(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        (owner,) = await owners(stack, tmp_path, 1)
        one, two, gone = await group(stack, [owner], 3, tc.policies.Sync(3))
        await together(*(each.step(x) for each, x in zip((one, two, gone), batches(3), strict=True)))
        await gone.client.close()
        await owner.restart()
        assert [each.counted for each in await together(one.step(batches(1)[0]), two.step(batches(1)[0]))] == [2, 2]


async def test_versions_and_staleness_go_on_after_a_restart(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        (owner,) = await owners(stack, tmp_path, 1)
        one, late = await group(stack, [owner], 2, tc.policies.Quorum(1, of=2))
        assert await one.step(batches(1)[0]) == {"ps0": 1}
        await owner.restart()
        async with late.client.context() as ctx:
            await ctx.backward(await late.loss(batches(1)[0]))
            assert await one.step(batches(1)[0]) == {"ps0": 2}
            stepped = await late.opt.step(ctx)
        assert (stepped, stepped.staleness, stepped.dropped) == ({"ps0": 2}, 1, "late")


async def test_a_trainer_that_was_ahead_is_ahead_after_a_restart(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        (owner,) = await owners(stack, tmp_path, 1)
        fast, slow = await group(stack, [owner], 2, tc.policies.BoundedStaleness(2))
        for _ in range(2):
            await fast.step(batches(1)[0])
        await owner.restart()
        ahead = asyncio.create_task(fast.step(batches(1)[0]))
        await until(lambda: hosted(owner.server).version == 3)
        await slow.client.status()
        assert not ahead.done()
        await slow.step(batches(1)[0])
        assert await ahead == {"ps0": 3}
