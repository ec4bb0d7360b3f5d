"""Unary calls count towards the budgets of their trainer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

import trainer_client as tc
from ps_service.server import Server
from ps_wire.codec.values import Encoder
from ps_wire.limits import MIB, Limits
from ps_wire.v1 import operations_pb2 as pb
from ps_wire.v1.owner_pb2_grpc import OwnerStub
from ps_wire.v1.values_pb2 import Handle
from tests.integration.test_budgets import CROSSING, X, hosted, owner, until

ME = (("ps-trainer", bytes(range(16)).hex()),)
OTHER = (("ps-trainer", bytes(16).hex()),)


def call(target: Handle, method: str, *args: Any) -> pb.CallRequest:
    return pb.CallRequest(target=target, method=method, args=Encoder(None).encode(args))


@asynccontextmanager
async def crossing(limits: Limits) -> AsyncIterator[tuple[Server, OwnerStub, Handle]]:
    async with owner(limits) as server, grpc.aio.insecure_channel(server.address) as channel:
        stub = OwnerStub(channel)
        request = pb.CreateRequest(class_name=CROSSING, name="crossing", args=Encoder(None).encode(()))
        made = await stub.Create(request, metadata=ME)
        await stub.Attach(pb.AttachRequest(name="crossing"), metadata=OTHER)
        yield server, stub, made.object.handle


async def test_a_trainer_with_too_many_large_requests_is_refused_alone() -> None:
    async with crossing(Limits(max_session_bytes=MIB)) as (server, stub, thing):
        one = asyncio.ensure_future(stub.Call(call(thing, "hold", X), metadata=ME))
        await until(lambda: hosted(server).inside == 1)
        assert server.engine.budget.requests > len(X)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Call(call(thing, "hold", X), metadata=ME)
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "max_session_bytes" in (refused.value.details() or "")
        other = asyncio.ensure_future(stub.Call(call(thing, "hold", X), metadata=OTHER))
        await until(lambda: hosted(server).inside == 2)
        await stub.Call(call(thing, "open"), metadata=ME)
        await asyncio.gather(one, other)
        assert server.engine.budget.requests == 0
        assert server.engine.budget.refusals == 1
        await stub.Call(call(thing, "hold", X), metadata=ME)


async def test_requests_on_a_stream_and_unary_ones_of_a_trainer_count_together() -> None:
    async with crossing(Limits(max_session_bytes=MIB)) as (server, stub, thing), tc.connect(server.address) as ps:
        (trainer,) = (each.trainer for each in server.engine.sessions.all() if each.streams)
        me = (("ps-trainer", trainer.hex()),)
        held = asyncio.ensure_future((await ps.attach("crossing")).call("hold", X))
        await until(lambda: hosted(server).inside == 1)
        with pytest.raises(grpc.aio.AioRpcError, match="RESOURCE_EXHAUSTED"):
            await stub.Call(call(thing, "hold", X), metadata=me)
        await stub.Call(call(thing, "open"), metadata=ME)
        assert await held == len(X)


async def test_large_answers_count_until_they_are_sent() -> None:
    async with crossing(Limits(max_session_bytes=MIB)) as (server, stub, thing):
        budget, most = server.engine.budget, 0

        async def watch() -> None:
            nonlocal most
            while True:
                most = max(most, budget.unsent)
                await asyncio.sleep(0)

        watching = asyncio.create_task(watch())
        for _ in range(3):
            await stub.Call(call(thing, "bytes", 2 * MIB), metadata=ME)
        await until(lambda: budget.unsent == 0)
        watching.cancel()
        assert most > 2 * MIB


async def test_a_cancelled_large_request_holds_nothing_in_the_end() -> None:
    async with crossing(Limits(max_session_bytes=MIB)) as (server, stub, thing):
        one = stub.Call(call(thing, "hold", X), metadata=ME)
        waiting = asyncio.ensure_future(one)
        await until(lambda: hosted(server).inside == 1)
        one.cancel()
        await asyncio.wait([waiting])
        await until(lambda: server.engine.budget.requests == 0)
        assert one.cancelled() and hosted(server).inside == 1, "the method still runs"
        hosted(server).opened.set()
