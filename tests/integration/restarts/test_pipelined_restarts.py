"""Tests that calls whose arguments are results survive a restart of their owner, or say why they do not."""

from __future__ import annotations

import asyncio

import pytest
import torch

import trainer_client as tc
from ps_wire.refs import new_object_id
from ps_wire.v1.frames_pb2 import Frame, Request
from ps_wire.v1.operations_pb2 import CallRequest, CreateRequest
from ps_wire.v1.values_pb2 import Handle, Value
from tests.integration.restarting import Owner
from tests.integration.support import COUNTER, GATE, HandMade, until
from tests.training import same
from trainer_client.transport.grpc_stream import GrpcConnector


async def test_a_result_that_stays_is_in_the_checkpoint(owner: Owner) -> None:
    async with tc.connect(owner.address) as ps:
        first = await ps.module("torch.nn.Linear", 3, 3, name="first")
        second = await ps.module("torch.nn.Linear", 3, 3, name="second")
        inner = first(torch.ones(2, 3))
        before = await second(inner)
        await owner.restart()
        same(await second(inner), before, "after the restart")
        assert (await inner).shape == (2, 3)
        del inner
        await until(ps, lambda _: len(owner.server.engine.registry) == 2)


async def test_a_chain_that_is_cut_off_says_so(owner: Owner) -> None:
    async with tc.connect(owner.address) as ps:
        gate = await ps.create(GATE, name="gate")
        hosted = owner.server.engine.registry.named("gate").value
        counter = await ps.create(COUNTER)
        outer = counter.echo(counter.echo(gate.wait()))
        await gate.wait_for(1)
        draining = asyncio.create_task(owner.server.drain(0.05))
        with pytest.raises(
            tc.errors.SessionLostError, match=r"Gate\.wait, whose result .* stopped while this request ran"
        ):
            await outer
        hosted._open.set()
        await draining
        await owner.start()
        assert (await ps.status()).serving


async def test_a_request_is_not_waited_for_if_one_that_it_follows_is_turned_away(owner: Owner) -> None:
    stream = await HandMade.greeted(GrpcConnector(owner.address))
    await stream.send(Frame(number=1, request=Request(create=CreateRequest(class_name=COUNTER, name="counter"))))
    counter = (await stream.receive()).reply.create.object.handle.object_id
    id = new_object_id()

    def call(**fields: object) -> CallRequest:
        return CallRequest(target=Handle(owner="ps0", object_id=counter), method="echo", **fields)  # type: ignore[arg-type]

    later = call(results=[id])
    later.args.tuple.items.append(Value(result=0))
    last = call()
    last.args.tuple.items.append(Value(integer=1))
    # Two that follow in a row; the first of all has not arrived yet.
    await stream.send(Frame(number=3, request=Request(call=later, after=[2])))
    await stream.send(Frame(number=4, request=Request(call=last, after=[3])))
    async with tc.connect(owner.address) as ps:
        await until(ps, lambda status: status.requests_in_flight == 2)
        draining = asyncio.create_task(owner.server.drain(60))
        await until(ps, lambda status: not status.serving)
        earlier = call(result_id=id)
        earlier.args.tuple.items.append(Value(integer=7))
        await stream.send(Frame(number=2, request=Request(call=earlier)))
        async with asyncio.timeout(50):
            await draining
    told = [(await stream.receive()).draining.turned_away for _ in range(2)]
    assert told == [[], [2, 3, 4]]
    assert await stream.ended(), "none of the three is answered"
    await stream.connection.close()
