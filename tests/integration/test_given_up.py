"""Requests that are given up, also while there is no connection: the owner learns of it, and keeps nothing for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import torch

import trainer_client as tc
from ps_wire.connections.connection import ConnectionBroken
from ps_wire.limits import Limits
from tests.integration.support import AFFINE, COUNTER, GATE, MODELS, Cuttable, MemoryOwner, in_memory, serving, until
from tests.integration.wire_models import SlowToMake
from trainer_client.transport.faulty import Direction, Fault, FaultyConnector
from trainer_client.transport.grpc_stream import GrpcConnector
from trainer_client.transport.in_process import MemoryConnector

Ask = Callable[[tc.Client, tc.RemoteModule], Any]

REQUESTS: dict[str, Ask] = {
    "create": lambda ps, net: ps.create(COUNTER),
    "module": lambda ps, net: ps.module(AFFINE, 2, 2),
    "remote": lambda ps, net: ps.remote(torch.add, torch.ones(3), 1),
    "call that keeps": lambda ps, net: net.remote("forward", torch.ones(1, 2)),
    "attach": lambda ps, net: ps.attach("net"),
    "optimizer": lambda ps, net: ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1, name="another"),
    "call": lambda ps, net: net(torch.ones(1, 2)),
}


class AnswersAreLost:
    """Lets every request pass and breaks the connection in place of the answer that comes next, once it is armed."""

    def __init__(self) -> None:
        self.armed = False

    def __call__(self, direction: Direction, index: int, packet: Any) -> Fault:
        if self.armed and direction is Direction.TO_TRAINER:
            return Fault.CUT
        return Fault.NONE


class Unplugged(MemoryConnector):
    """A connector that can be told to open nothing."""

    plugged: bool = True

    async def connect(self) -> Any:
        if not self.plugged:
            raise ConnectionBroken("the cable is out")
        return await super().connect()


def held(owner: MemoryOwner) -> dict[str, int]:
    """How many references an owner has given out, by class."""
    return {
        f"{each.class_name} {each.name} {each.ref.object_id}": each.references
        for each in owner.engine.registry.objects()
        if each.references
    }


@asynccontextmanager
async def trained() -> AsyncIterator[tuple[MemoryOwner, Unplugged, AnswersAreLost, tc.Client, tc.RemoteModule]]:
    async with in_memory() as owner:
        line, plan = Unplugged(owner.servicer.serve), AnswersAreLost()
        async with tc.connect(FaultyConnector(line, plan)) as ps:
            yield owner, line, plan, ps, await ps.module(AFFINE, 2, 2, name="net")


async def disconnected(ps: tc.Client) -> None:
    while "disconnected" not in repr(ps):  # noqa: ASYNC110
        await asyncio.sleep(0)


@pytest.mark.parametrize("what", REQUESTS)
async def test_a_request_cancelled_without_a_connection_leaves_nothing(what: str) -> None:
    async with trained() as (owner, line, plan, ps, net):
        await ps.status()
        before = held(owner)
        for _ in range(3):
            line.plugged, plan.armed = False, True
            asked = REQUESTS[what](ps, net)
            waiting = asyncio.create_task(_outcome(asked))
            # It ran, and its answer was lost with the connection.
            await disconnected(ps)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            plan.armed, line.plugged = False, True
            await ps.status()
            # What the trainer gives back travels in a request of its own.
            async with asyncio.timeout(60):
                while held(owner) != before:  # noqa: ASYNC110
                    await asyncio.sleep(0)
        await until(ps, lambda status: status.kept_answers == 0)


async def _outcome(pending: Any) -> Any:
    return await pending


async def test_an_object_whose_maker_is_cancelled_without_a_connection_is_not_kept() -> None:
    async with in_memory() as owner:
        line = Cuttable(owner.connector())
        async with tc.connect(line) as ps:
            for _ in range(5):
                making = ps.create(f"{MODELS}.SlowToMake", timeout=None)
                await asyncio.to_thread(SlowToMake.entered.acquire)
                await line.unplug()
                making.cancel()
                SlowToMake.go_on.release()
                line.plug_in()
                status = await until(ps, lambda status: status.requests_in_flight == 0 and not status.objects)
                assert status.sessions == 1, "the trainer is back"


async def test_a_request_that_was_never_sent_is_answered_and_dropped() -> None:
    async with in_memory() as owner:
        line = Cuttable(owner.connector())
        async with tc.connect(line) as ps:
            counter = await ps.create(COUNTER)
            await line.unplug()
            for _ in range(20):
                counter.add().cancel()
            line.plug_in()
            assert await counter.get() == 0
            session = counter.session
            async with asyncio.timeout(60):
                while session.requests.given_up:
                    await ps.status()
            # They leave no gaps among the numbers that were taken.
            (known,) = owner.engine.sessions.all()
            assert not known.taken_numbers.holes


async def test_calls_given_up_without_a_connection_are_not_in_flight_any_more() -> None:
    async with serving(Limits(max_in_flight=4), threads=8) as owner, tc.connect(owner.address) as other:
        line = Cuttable(GrpcConnector(owner.address))
        async with tc.connect(line) as ps:
            gate, counter = await ps.create(GATE, name="gate"), await ps.create(COUNTER)
            waiting = [gate.options(timeout=None).wait() for _ in range(4)]
            opener = await other.attach("gate")
            await opener.wait_for(4)
            await line.unplug()
            for call in waiting:
                call.cancel()
            # All four, while the owner still believes in four others.
            calls = [counter.echo(number) for number in range(4)]
            line.plug_in()
            assert await asyncio.gather(*calls) == list(range(4))
            await opener.open()


async def test_an_upload_that_is_overtaken_by_very_many_requests_is_still_taken() -> None:
    async with in_memory() as owner, tc.connect(owner.connector()) as ps:
        counter = await ps.create(COUNTER)
        (session,) = owner.engine.sessions.all()
        # As if so many had passed an upload whose number is the next.
        number = counter.session.requests.window.last_number + 1
        for later in range(number + 1, number + 70_000):
            session.taken_numbers.add(later)
        assert await counter.add(5) == 5
