"""One trainer cannot stop an owner for the others: turns, given-up calls, and what an owner says of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import grpc
import pytest
import torch
from grpc_health.v1 import health_pb2, health_pb2_grpc

import trainer_client as tc
from ps_service.server import Server
from ps_wire.limits import Limits
from ps_wire.v1 import operations_pb2 as pb
from ps_wire.v1.owner_pb2_grpc import OwnerStub
from tests.hosted_models import Gate
from tests.integration.support import COUNTER, GATE, MODELS, engine, until

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
ME = (("ps-trainer", "ab" * 16),)


@dataclass
class Place:
    """An owner with few threads, trainers of it, and gates that hold threads."""

    server: Server
    trainers: list[tc.Client]
    gates: list[Gate]

    async def gate(self, ps: tc.Client) -> Any:
        """A handle of a gate that is opened at the latest when the test is over."""
        made = await ps.create(GATE)
        self.gates.append(self.server.engine.registry.find(made.ref).value)
        return made

    async def lose(self, ps: tc.Client, count: int) -> Gate:
        """A trainer gives up calls that go on."""
        gate = await self.gate(ps)
        for number in range(count):
            call = asyncio.ensure_future(gate.wait())
            await asyncio.to_thread(self.gates[-1].wait_for, number + 1)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
        await until(ps, lambda status: status.threads_lost >= count)
        return self.gates[-1]


@asynccontextmanager
async def owner(threads: int, spare: int = 0, trainers: int = 2, **server: Any) -> AsyncIterator[Place]:
    made = engine(limits=Limits(lease_seconds=0.2), threads=threads, spare=spare)
    async with AsyncExitStack() as stack:
        place = Place(await stack.enter_async_context(Server(made, **server)), [], [])
        stack.callback(lambda: [gate.open() for gate in place.gates])
        for _ in range(trainers):
            place.trainers.append(await stack.enter_async_context(tc.connect(place.server.address)))
        yield place


# Turns


async def test_one_call_does_not_wait_for_all_that_another_trainer_has_queued() -> None:
    async with owner(threads=1) as place:
        one, other = place.trainers
        diary = await one.create(f"{MODELS}.Diary", name="diary")
        theirs = await other.attach("diary")
        gate = await place.gate(one)
        holds = asyncio.ensure_future(gate.wait())
        await asyncio.to_thread(place.gates[0].wait_for, 1)
        queued = [diary.note(f"one {number}") for number in range(200)]
        await until(one, lambda status: status.requests_in_flight == 201)
        single = theirs.note("other")
        await until(other, lambda status: status.requests_in_flight == 202)
        place.gates[0].open()
        await asyncio.gather(holds, single, *queued)
        notes = await diary.read()
        assert notes.index("other") <= 1
        assert [note for note in notes if note != "other"] == [f"one {number}" for number in range(200)]


async def test_unary_callers_take_turns_too() -> None:
    async with owner(threads=1) as place, grpc.aio.insecure_channel(place.server.address) as channel:
        one, _ = place.trainers
        diary = await one.create(f"{MODELS}.Diary", name="diary")
        gate = await place.gate(one)
        holds = asyncio.ensure_future(gate.wait())
        await asyncio.to_thread(place.gates[0].wait_for, 1)
        queued = [diary.note(f"one {number}") for number in range(100)]
        await until(one, lambda status: status.requests_in_flight == 101)
        request = pb.CallRequest(target=diary.ref.to_message(), method="note")
        request.args.tuple.items.add().text = "other"
        single = asyncio.ensure_future(OwnerStub(channel).Call(request, metadata=ME))
        await until(one, lambda status: status.requests_in_flight == 102)
        place.gates[0].open()
        await asyncio.gather(holds, single, *queued)
        assert (await diary.read()).index("other") <= 1


async def test_the_status_is_told_while_every_thread_is_held() -> None:
    async with owner(threads=1) as place:
        one, other = place.trainers
        gate = await place.gate(one)
        holds = asyncio.ensure_future(gate.wait())
        await asyncio.to_thread(place.gates[0].wait_for, 1)
        waits = asyncio.ensure_future(other.call(torch.neg, torch.ones(1)))
        status = await until(other, lambda status: status.requests_in_flight == 2)
        assert (status.threads, status.threads_waiting, status.threads_lost, status.stalled) == (1, 0, 0, False)
        place.gates[0].open()
        await asyncio.gather(holds, waits)


# Calls that were given up


async def _cancelled(place: Place, count: int) -> None:
    await place.lose(place.trainers[0], count)


async def _out_of_time(place: Place, count: int) -> None:
    gate = await place.gate(place.trainers[0])
    # Those that have not begun in time hold no thread.
    while place.server.engine.compute.lost < 2:
        calls = [gate.options(timeout=0.2).wait() for _ in range(count)]
        for each in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(each, tc.errors.DeadlineExceededError)


async def _without_a_session(place: Place, count: int) -> None:
    gate = await place.gate(place.trainers[1])
    vanishing = await tc.connect(place.server.address, reconnect_timeout=0.0)
    theirs = await vanishing.attach(str(gate))
    calls = [asyncio.ensure_future(theirs.wait()) for _ in range(count)]
    await asyncio.to_thread(place.gates[0].wait_for, min(count, place.server.engine.compute.threads))
    for session in vanishing._sessions.opening:  # without a goodbye
        await session._link.stop()
    await until(place.trainers[1], lambda status: status.sessions == 2)
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    await vanishing.close()


async def _unary(place: Place, count: int, *, numbered: bool) -> None:
    gate = await place.gate(place.trainers[0])
    request = pb.CallRequest(target=gate.ref.to_message(), method="wait")
    async with grpc.aio.insecure_channel(place.server.address) as channel:
        for number in range(count):
            metadata = (*ME, ("ps-number", str(number + 1))) if numbered else ME
            call = asyncio.ensure_future(OwnerStub(channel).Call(request, metadata=metadata))
            await asyncio.to_thread(place.gates[0].wait_for, number + 1)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            await until(place.trainers[1], lambda status, lost=number + 1: status.threads_lost == lost)


async def _unary_plain(place: Place, count: int) -> None:
    await _unary(place, count, numbered=False)


async def _unary_numbered(place: Place, count: int) -> None:
    await _unary(place, count, numbered=True)


@pytest.mark.parametrize(
    "give_up",
    [_cancelled, _out_of_time, _without_a_session, _unary_plain, _unary_numbered],
    ids=lambda each: each.__name__.strip("_").replace("_", " "),
)
async def test_calls_that_were_given_up_do_not_keep_the_threads_from_others(give_up: Callable[..., Any]) -> None:
    async with owner(threads=2) as place:
        await give_up(place, 4)
        other = place.trainers[1]
        counter = await other.create(COUNTER)
        assert [await counter.add() for _ in range(3)] == [1, 2, 3]
        status = await until(other, lambda status: status.threads_lost >= 2)
        assert not status.stalled
        for gate in place.gates:
            gate.open()
        await until(other, lambda status: status.threads_lost == 0)
        assert await counter.add() == 4


async def test_a_numbered_call_that_is_asked_for_again_is_waited_for_again() -> None:
    async with owner(threads=2) as place, grpc.aio.insecure_channel(place.server.address) as channel:
        gate = await place.gate(place.trainers[0])
        request = pb.CallRequest(target=gate.ref.to_message(), method="wait")
        metadata = (*ME, ("ps-number", "1"))
        first = asyncio.ensure_future(OwnerStub(channel).Call(request, metadata=metadata))
        await asyncio.to_thread(place.gates[0].wait_for, 1)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await until(place.trainers[0], lambda status: status.threads_lost == 1)
        again = asyncio.ensure_future(OwnerStub(channel).Call(request, metadata=metadata))
        await until(place.trainers[0], lambda status: status.threads_lost == 0)
        place.gates[0].open()
        assert (await again).result.text == "through"
        assert place.gates[0].inside == 1, "it ran once"


# At the bound


async def test_a_trainer_whose_calls_hang_is_refused_before_it_holds_everything() -> None:
    async with owner(threads=2, spare=4) as place:
        one, other = place.trainers
        counter = await one.create(COUNTER, name="counter")
        gate = await place.lose(one, 2)
        with pytest.raises(tc.errors.OverloadedError, match=r"no more work of this trainer for now.*still running"):
            await counter.add()
        assert (await one.status()).threads_lost == 2, "administration goes on"
        theirs = await other.attach("counter")
        assert await theirs.add() == 1
        gate.open()
        await until(one, lambda status: status.threads_lost == 0)
        assert await counter.add() == 2


async def test_an_owner_without_threads_says_so_until_it_has_some_again(caplog: pytest.LogCaptureFixture) -> None:
    async with (
        owner(threads=1, spare=1, http="127.0.0.1:0") as place,
        grpc.aio.insecure_channel(place.server.address) as channel,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as http,
    ):
        one, other = place.trainers
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == SERVING
        counter = await one.create(COUNTER, name="counter")
        gates = [await place.lose(one, 1), await place.lose(other, 1)]
        assert (await watch.read()).status == NOT_SERVING
        status = await one.status()
        assert status.stalled and status.serving and status.threads_lost == 2
        async with http.get(f"http://{place.server.http_address}/healthz") as response:
            assert (response.status, (await response.json())["state"]) == (503, "stalled")
        assert "stalled: all 1 threads and 1 spare ones are held by work that was given up" in caplog.text
        async with tc.connect(place.server.address) as third:
            waits = asyncio.ensure_future((await third.attach("counter")).add())
            await until(third, lambda status: status.requests_in_flight == 1)
            gates[0].open()
            assert await waits == 1
        assert (await watch.read()).status == SERVING
        async with http.get(f"http://{place.server.http_address}/healthz") as response:
            assert (response.status, (await response.json())["state"]) == (200, "serving")
        gates[1].open()
        await until(one, lambda status: status.threads_lost == 0)
        assert await counter.add() == 2
