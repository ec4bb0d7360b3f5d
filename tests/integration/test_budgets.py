"""Tests the budgets in bytes of sessions and of an owner, and that waiting for space never deadlocks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import torch

import trainer_client as tc
from ps_service.engine import Engine
from ps_service.hosting.allowlist import AllowList
from ps_service.server import Server
from ps_wire.limits import MIB, Limits
from ps_wire.v1.errors_pb2 import ErrorCode
from ps_wire.v1.frames_pb2 import Confirm, Frame, Part, Request
from ps_wire.v1.operations_pb2 import CallRequest
from ps_wire.v1.values_pb2 import DTYPE_UINT8, Handle, Tensor, Value
from tests.integration import budget_models
from tests.integration.support import HandMade
from tests.transports import TRANSPORTS, over_each
from tests.waiting import until
from trainer_client.transport.grpc_stream import GrpcConnector
from trainer_client.transport.in_process import MemoryConnector

CROSSING = "tests.integration.budget_models.Crossing"
HALF = 512 * 1024
X = torch.zeros(HALF + 1, dtype=torch.uint8)
"""A little more than half of a session's budget: two do not fit."""

LIMITS = Limits(max_session_bytes=MIB)


@asynccontextmanager
async def owner(limits: Limits = LIMITS, threads: int = 8) -> AsyncIterator[Server]:
    engine = Engine("ps0", AllowList([budget_models]), limits=limits, threads=threads)
    async with Server(engine, direct_port=0) as server:
        yield server


@asynccontextmanager
async def crossing(transport: str, limits: Limits = LIMITS) -> AsyncIterator[tuple[Server, tc.Client, tc.RemoteObject]]:
    """An owner, a trainer of it, and an object that holds callers up."""
    async with owner(limits) as server, tc.connect(server.address, **TRANSPORTS[transport]) as ps:
        yield server, ps, await ps.create(CROSSING, name="crossing")


def hosted(server: Server) -> budget_models.Crossing:
    value = server.engine.registry.named("crossing").value
    assert isinstance(value, budget_models.Crossing)
    return value


# Trainers that keep to their budget


@over_each
async def test_large_requests_are_sent_as_far_as_they_fit_and_small_ones_go_past_them(transport: str) -> None:
    async with crossing(transport) as (server, _, thing):
        calls = [asyncio.ensure_future(thing.hold(X)) for _ in range(5)]
        await until(lambda: hosted(server).inside == 1)
        # What opens the crossing comes after four that wait for their turn.
        assert server.engine.budget.requests == len(X)
        await thing.open()
        assert await asyncio.gather(*calls) == [len(X)] * 5
        await until(lambda: not server.engine.budget.requests)
        assert server.engine.budget.pauses == 0


@over_each
async def test_a_message_larger_than_the_budget_is_sent_alone(transport: str) -> None:
    async with crossing(transport) as (server, _, thing):
        await thing.open()
        large = torch.zeros(3 * MIB, dtype=torch.uint8)
        assert await asyncio.gather(*(thing.hold(large) for _ in range(4))) == [3 * MIB] * 4
        assert server.engine.budget.refusals == 0


@over_each
async def test_large_requests_that_travel_together_all_arrive(transport: str) -> None:
    limits = Limits(max_message_bytes=2 * MIB, max_session_bytes=16 * MIB)
    async with crossing(transport, limits) as (server, _, thing):
        await thing.open()
        large = torch.zeros(2 * MIB, dtype=torch.uint8)
        assert await asyncio.gather(*(thing.hold(large) for _ in range(7))) == [2 * MIB] * 7
        await until(lambda: not server.engine.budget.requests)


@over_each
async def test_large_answers_that_travel_together_all_arrive(transport: str) -> None:
    limits = Limits(max_message_bytes=4 * MIB, max_session_bytes=64 * MIB)
    async with crossing(transport, limits) as (_, _, thing):
        answers = await asyncio.gather(*(thing.bytes(4 * MIB) for _ in range(12)))
        assert [len(each) for each in answers] == [4 * MIB] * 12


@over_each
async def test_requests_whose_answers_wait_for_each_other_all_come_through(transport: str) -> None:
    async with crossing(transport) as (server, _, thing):
        assert await asyncio.gather(*(thing.rendezvous(X, 5) for _ in range(5))) == [5] * 5
        await until(lambda: not server.engine.budget.requests)


@over_each
async def test_requests_that_wait_for_others_make_way_up_to_a_second_budget(transport: str) -> None:
    async with crossing(transport) as (server, _, thing):
        calls = [asyncio.ensure_future(thing.ask_others(X)) for _ in range(3)]
        await until(lambda: hosted(server).inside == 3)
        await until(lambda: server.engine.budget.waiting == 3 * len(X))
        with pytest.raises(tc.errors.OverloadedError, match="max_session_bytes"):
            await thing.ask_others(X)
        await thing.open()
        assert await asyncio.gather(*calls) == [len(X)] * 3
        await until(lambda: not server.engine.budget.waiting)


@over_each
async def test_a_call_that_is_given_up_makes_way_once_its_code_has_ended(transport: str) -> None:
    async with crossing(transport) as (server, _, thing):
        # One whose time is over before its code has begun holds nothing: then another gets more time.
        for seconds in (0.2, 2.0, 20.0):
            with pytest.raises(tc.errors.DeadlineExceededError):
                await thing.options(timeout=seconds).hold(X)
            if hosted(server).inside:
                break
        assert server.engine.budget.requests == len(X)
        await thing.open()
        await until(lambda: not server.engine.budget.requests)


# Others


def call(number: int, handle: Handle, method: str, argument: Value, seconds: float = 0.0, depth: int = 0) -> Frame:
    args = Value()
    args.tuple.items.append(argument)
    request = CallRequest(target=handle, method=method, args=args)
    return Frame(number=number, request=Request(call=request, timeout_seconds=seconds, depth=depth))


def tensor(nbytes: int) -> Value:
    return Value(tensor=Tensor(dtype=DTYPE_UINT8, shape=[nbytes], nbytes=nbytes))


async def send(trainer: HandMade, frame: Frame, payload: bytes) -> None:
    frame.payload_bytes = len(payload)
    await trainer.send(frame, payload)


@pytest.fixture(params=["grpc", "memory"])
def connecting(request: pytest.FixtureRequest) -> Callable[[Server], Any]:
    def connect(server: Server) -> Any:
        if request.param == "memory":
            return MemoryConnector(server.servicer.serve)
        return GrpcConnector(server.address)

    return connect


async def test_a_session_over_its_budget_is_not_read_from(connecting: Callable[[Server], Any]) -> None:
    async with crossing("grpc") as (server, _, thing):
        budget, handle = server.engine.budget, thing.ref.to_message()
        connector = connecting(server)
        trainer = await HandMade.greeted(connector)
        for number in range(1, 6):
            await send(trainer, call(number, handle, "hold", tensor(len(X))), bytes(len(X)))
        await until(lambda: budget.paused == 1)
        assert budget.requests == len(X)
        await thing.open()
        answers = [await trainer.receive() for _ in range(5)]
        assert [each.reply.call.result.integer for each in answers] == [len(X)] * 5
        assert budget.paused == budget.requests == 0
        await connector.close()


async def test_a_message_without_space_in_time_is_refused_and_reading_goes_on() -> None:
    async with crossing("grpc") as (server, _, thing):
        handle = thing.ref.to_message()
        trainer = await HandMade.greeted(MemoryConnector(server.servicer.serve))
        await send(trainer, call(1, handle, "hold", tensor(len(X))), bytes(len(X)))
        await send(trainer, call(2, handle, "hold", tensor(len(X)), seconds=0.1), bytes(len(X)))
        refused = await trainer.receive()
        assert (refused.number, refused.reply.error.code) == (2, ErrorCode.ERROR_OVERLOADED)
        assert server.engine.budget.refusals == 1
        # A request that another waits for is let in.
        await send(trainer, call(3, handle, "hold", tensor(len(X)), depth=1), bytes(len(X)))
        await until(lambda: hosted(server).inside == 2)
        await thing.open()
        assert {(await trainer.receive()).number for _ in range(2)} == {1, 3}


async def test_nothing_is_held_for_a_stream_that_broke_within_a_message() -> None:
    async with crossing("grpc") as (server, _, thing):
        budget = server.engine.budget
        trainer = await HandMade.greeted(MemoryConnector(server.servicer.serve))
        frame = call(1, thing.ref.to_message(), "hold", tensor(len(X)))
        frame.payload_bytes = len(X)
        await trainer.send(frame, bytes(1024))
        await until(lambda: budget.requests == len(X))
        await trainer.send(call(2, thing.ref.to_message(), "hold", tensor(MIB)))
        await trainer.connection.close()
        await until(lambda: not budget.requests)


async def test_a_message_that_was_refused_is_passed_over_to_its_end() -> None:
    async with crossing("grpc") as (server, _, thing):
        handle = thing.ref.to_message()
        trainer = await HandMade.greeted(MemoryConnector(server.servicer.serve))
        await send(trainer, call(1, handle, "hold", tensor(len(X))), bytes(len(X)))
        frame = call(2, handle, "hold", tensor(len(X)), seconds=0.1)
        frame.payload_bytes = len(X)
        await trainer.send(frame, bytes(1024))
        await trainer.send(Frame(number=2, part=Part(offset=1024)), bytes(len(X) - 1024))
        assert (await trainer.receive()).reply.error.code == ErrorCode.ERROR_OVERLOADED
        await trainer.send(call(3, handle, "open", Value()))
        await thing.open()
        assert {(await trainer.receive()).number for _ in range(2)} == {1, 3}


async def test_all_together_are_bounded_and_each_may_have_one_message() -> None:
    limits = Limits(max_session_bytes=4 * MIB, max_owner_bytes=MIB)
    async with crossing("grpc", limits=limits) as (server, _, thing):
        budget, handle = server.engine.budget, thing.ref.to_message()
        first, second = [await HandMade.greeted(MemoryConnector(server.servicer.serve)) for _ in range(2)]
        for number in (1, 2, 3):
            await send(first, call(number, handle, "hold", tensor(len(X))), bytes(len(X)))
        await until(lambda: budget.paused == 1)
        await send(second, call(1, handle, "hold", tensor(len(X))), bytes(len(X)))
        await until(lambda: hosted(server).inside == 2)
        assert budget.paused == 1
        await thing.open()
        assert [(await first.receive()).number for _ in range(3)] == [1, 2, 3]
        assert (await second.receive()).number == 1


# Answers


@pytest.mark.parametrize("threads", [1, 4])
async def test_answers_that_are_not_confirmed_are_bounded(threads: int) -> None:
    async with owner(threads=threads) as server, tc.connect(server.address) as ps:
        thing = await ps.create(CROSSING)
        engine, handle = server.engine, thing.ref.to_message()
        trainer = await HandMade.greeted(MemoryConnector(server.servicer.serve))
        for number in range(1, 21):
            await trainer.send(call(number, handle, "bytes", Value(integer=HALF)))
        await until(lambda: engine.reply_cache.nbytes >= MIB)
        held = engine.reply_cache.nbytes
        assert held <= MIB + threads * HALF
        arrived: list[int] = []
        while len(arrived) < 20:
            number = (await trainer.receive()).number
            if number not in arrived:
                arrived.append(number)
            assert engine.reply_cache.nbytes <= MIB + threads * HALF
            await trainer.send(Frame(confirm=Confirm(numbers=[number])))
        await until(lambda: not engine.reply_cache.nbytes)


async def test_answers_that_are_not_read_are_bounded() -> None:
    async with owner(threads=2) as server, tc.connect(server.address) as ps:
        net = await ps.module(torch.nn.Linear, 1024, 1024)
        engine = server.engine
        connector = GrpcConnector(server.address)
        trainer = await HandMade.greeted(connector)
        for number in range(1, 9):
            frame = Frame(number=number)
            frame.request.state.target.CopyFrom(net.ref.to_message())
            await trainer.send(frame)
        # Nothing of it is kept until it is confirmed: it is made again when it gets lost.
        await until(lambda: engine.budget.unsent > 0)
        whole = {number: 0 for number in range(1, 9)}
        while any(nbytes < 4 * MIB for nbytes in whole.values()):
            assert engine.budget.unsent <= MIB + 2 * 5 * MIB
            packet = await trainer.connection.receive()
            assert packet is not None
            whole[packet.frame.number] += packet.nbytes
        await until(lambda: not engine.budget.unsent)
        await connector.close()


async def test_unsent_answers_stop_counting_with_their_stream() -> None:
    async with owner(threads=2) as server, tc.connect(server.address) as ps:
        net = await ps.module(torch.nn.Linear, 1024, 1024)
        connector = GrpcConnector(server.address)
        trainer = await HandMade.greeted(connector)
        frame = Frame(number=1)
        frame.request.state.target.CopyFrom(net.ref.to_message())
        await trainer.send(frame)
        await until(lambda: server.engine.budget.unsent > 0)
        await trainer.connection.close()
        await connector.close()
        await until(lambda: not server.engine.budget.unsent)


@over_each
async def test_large_answers_are_confirmed_at_once_so_that_the_next_are_made(transport: str) -> None:
    async with crossing(transport) as (server, _, thing):
        answers = await asyncio.gather(*(thing.bytes(HALF) for _ in range(12)))
        assert [len(each) for each in answers] == [HALF] * 12
        await until(lambda: not server.engine.reply_cache.nbytes)
