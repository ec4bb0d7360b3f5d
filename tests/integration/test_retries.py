"""Tests that a job has the same result, bit for bit, wherever a stream breaks."""

from __future__ import annotations

import asyncio
import itertools
import random
from typing import Any

import pytest
import torch

import trainer_client as tc
from ps_service.engine import Engine
from ps_wire.connections.connection import Connector
from ps_wire.connections.frames import Packet
from ps_wire.refs import ContextId
from tests.integration.breaking import FAULTS, BreakOnce, no_fault, same_wherever_it_breaks
from tests.integration.support import AFFINE, COUNTER, bits, in_memory, serving, until
from tests.transports import TRANSPORTS, over_each
from trainer_client.transport.faulty import Direction, Fault, FaultyConnector, Plan
from trainer_client.transport.grpc_stream import GrpcConnector


async def job(ps: tc.Client) -> list[Any]:
    """Creates, trains and counts; everything it saw, and everything that is there at its end."""
    seen: list[Any] = []
    net = await ps.module(AFFINE, 3, 2, name="net", seed=0)
    counter = await ps.create(COUNTER)
    opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1, momentum=0.9)
    for step in range(2):
        async with ps.context() as ctx:
            loss = (await net(torch.full((2, 3), step + 1.0))).square().sum()
            if step % 2:
                versions = await ctx.backward(loss, step=opt)
            else:
                await ctx.backward(loss)
                versions = await opt.step(ctx)
            seen += [loss.detach(), versions, await counter.add(step + 1)]
    seen.append(sorted(await asyncio.gather(*(counter.add() for _ in range(3)))))
    kept = await counter.hand_out(torch.arange(3))
    seen += [await kept.to_here(), await counter.get(), await net.called()]
    seen += [await net.state_dict(), await opt.state_dict()]
    return bits(seen)


async def run(plan: Plan) -> tuple[list[Any], Engine]:
    """The job over memory, and its owner afterwards."""
    async with in_memory() as owner:
        async with tc.connect(FaultyConnector(owner.connector(), plan)) as ps:
            result = await job(ps)
            await until(ps, lambda status: status.kept_answers == 0 and status.contexts == 0)
        return result, owner.engine


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_stream_may_break_at_any_packet(fault: Fault, direction: Direction) -> None:
    async def result(plan: Plan) -> list[Any]:
        result, engine = await run(plan)
        # The trainer has left: whatever it held is gone, and the named objects are there.
        assert [each.name for each in engine.registry.objects()] == ["net", "net.optimizer"], plan
        return result

    await same_wherever_it_breaks(result, fault, direction)


@pytest.mark.parametrize("seed", range(3))
async def test_a_stream_may_break_again_and_again(seed: int) -> None:
    chance = random.Random(seed)
    struck = 0

    def plan(direction: Direction, index: int, packet: Packet) -> Fault:
        nonlocal struck
        if chance.random() > 0.08:
            return Fault.NONE
        struck += 1
        return chance.choice(FAULTS)

    expected, _ = await run(no_fault)
    result, _ = await run(plan)
    assert result == expected and struck


@pytest.mark.parametrize("direction", Direction)
async def test_large_messages_may_break_in_the_middle(direction: Direction) -> None:
    value = torch.arange(1 << 20, dtype=torch.float32)
    async with in_memory() as owner, tc.connect(owner.connector()) as watching:
        counter = await watching.create(COUNTER)
        for fault, index in itertools.product(FAULTS, (2, 4, 6)):
            plan = BreakOnce(fault, direction, index)
            line = FaultyConnector(owner.connector(), plan)
            async with tc.connect(line) as ps:
                there = await ps.attach(str(counter))
                echoed, count = await asyncio.gather(there.echo([value, value[:5]]), there.add())
                assert torch.equal(echoed[0], value) and torch.equal(echoed[1], value[:5])
                assert plan.hit and line.connections >= 2 - (fault is Fault.TWICE)
        assert await counter.get() == count == 9


async def over(address: str, plan: Plan, transport: str) -> tuple[list[Any], int]:
    line = FaultyConnector(GrpcConnector(address), plan)
    async with tc.connect(line, **TRANSPORTS[transport]) as ps:
        result = await job(ps)
        await until(ps, lambda status: status.kept_answers == 0)
        await ps.delete("net")
        return result, line.connections


@over_each
@pytest.mark.parametrize("direction", Direction)
async def test_a_real_connection_may_break_too(direction: Direction, transport: str) -> None:
    async with serving() as owner:
        expected, _ = await over(owner.address, no_fault, transport)
        # Over the three transports together, every fault at every one of these packets.
        for turn, index in enumerate((0, 1, 4, 12), start=list(TRANSPORTS).index(transport)):
            fault = FAULTS[turn % len(FAULTS)]
            plan = BreakOnce(fault, direction, index)
            result, connections = await over(owner.address, plan, transport)
            assert result == expected and plan.hit
            # If another connection breaks early, the session stays on the stream that is open already.
            assert transport != "grpc" or fault is Fault.TWICE or connections == 2
        assert len(owner.engine.registry) == 0


@pytest.mark.parametrize("transport", ["grpc", "direct"])
async def test_large_messages_over_a_network_may_break_in_the_middle(transport: str) -> None:
    value = torch.arange(1 << 20, dtype=torch.float32)
    async with serving() as owner:
        for fault, direction in itertools.product(FAULTS, Direction):
            plan = BreakOnce(fault, direction, 4)
            connector: Connector = FaultyConnector(GrpcConnector(owner.address), plan)
            async with tc.connect(connector, **TRANSPORTS[transport]) as ps:
                counter = await ps.create(COUNTER)
                assert torch.equal(await counter.echo(value), value)
                assert plan.hit


async def test_answers_are_kept_only_until_they_are_confirmed() -> None:
    async with in_memory() as owner, tc.connect(owner.connector()) as ps:
        counter = await ps.create(COUNTER)
        await asyncio.gather(*(counter.add() for _ in range(50)))
        assert len(owner.engine.reply_cache) > 0
        await until(ps, lambda status: status.kept_answers == 0)
        assert len(owner.engine.reply_cache) == 0


async def test_answers_are_confirmed_although_nothing_more_is_asked() -> None:
    confirmed = asyncio.Event()

    def plan(direction: Direction, index: int, packet: Packet) -> Fault:
        if packet.frame.HasField("confirm"):
            confirmed.set()
        return Fault.NONE

    async with in_memory() as owner, tc.connect(FaultyConnector(owner.connector(), plan)) as ps:
        await ps.create(COUNTER)
        assert len(owner.engine.reply_cache) == 1
        await confirmed.wait()
        await until(ps, lambda status: status.kept_answers == 0)
        assert len(owner.engine.reply_cache) == 0


async def test_bookkeeping_does_not_grow_with_the_life_of_a_session() -> None:
    """Numbers of requests that change nothing, and of contexts that were not used here, leave no gap behind."""
    async with in_memory() as owner, tc.connect(owner.connector()) as ps:
        counter = await ps.create(COUNTER)
        net = await ps.module(torch.nn.Identity)
        for turn in range(100):
            await ps.status()
            await counter.add()
            ps.status().cancel()
            async with ps.context():
                if turn % 2:
                    await net(1)
        await until(ps, lambda status: status.kept_answers == 0)
        assert above(str(owner.engine.sessions.get(counter.session.trainer))) < 20
        trainer = counter.session.trainer
        for number in range(2, 12_000, 2):
            owner.engine.contexts.end(ContextId(trainer, number))
        assert above(str(owner.engine.contexts._ended[trainer])) < 5000


def above(text: str) -> int:
    """How many numbers stand above a gap."""
    return int(text.split("and ")[1].split(" above")[0])
