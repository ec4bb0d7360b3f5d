"""Tests that a trainer which sends requests and does not read the answers cannot fill the owner's memory."""

from __future__ import annotations

import socket

import torch

import trainer_client as tc
from ps_service.server import Server
from ps_wire.limits import Limits
from ps_wire.v1.frames_pb2 import Frame
from tests import waiting
from tests.conftest import StartOwner
from tests.integration.support import HandMade
from trainer_client.transport.grpc_stream import GrpcConnector
from trainer_client.transport.offers import open_direct

MANY = 1500
IN_FLIGHT = 8


async def moved(owner: Server) -> HandMade:
    """A trainer, frame by frame, whose session has moved to a direct connection."""
    first = HandMade(await GrpcConnector(owner.address).connect())
    await first.send(Frame(hello=first.hello()))
    welcome = (await first.receive()).welcome
    stream = HandMade(await open_direct(welcome.direct, owner.address))
    stream.trainer = first.trainer
    await stream.send(Frame(hello=stream.hello(incarnation=welcome.incarnation)))
    assert (await stream.receive()).HasField("welcome")
    return stream


async def send_many(stream: HandMade, layer: tc.RemoteModule) -> None:
    """Sends requests, whose answers take up to 64,000 bytes, and reads nothing."""
    stream.connection._stream.pause()  # type: ignore[attr-defined]
    for number in range(1, MANY + 1):
        frame = Frame(number=number)
        frame.request.fetch.target.CopyFrom(layer.parameter("weight").ref.to_message())
        await stream.send(frame)


async def test_small_answers_that_are_not_read_stop_the_reading_of_requests(start_owner: StartOwner) -> None:
    owner = await start_owner("ps0", limits=Limits(max_in_flight=IN_FLIGHT))
    async with tc.connect(owner.address) as ps:
        layer = await ps.module(torch.nn.Linear, 125, 128)
        stream = await moved(owner)
        session = owner.servicer.session_handlers.open(stream.trainer)
        (connection,) = owner.servicer.direct._connections.values()
        connection._stream._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        await send_many(stream, layer)
        answers = session.stream.outbox
        assert answers is not None
        await waiting.until(lambda: len(answers.waiting) > IN_FLIGHT)
        await waiting.until(lambda: not connection._stream.reading or len(answers.waiting) > MANY // 2)
        assert len(answers.waiting) <= 10 * IN_FLIGHT, "they wait without a bound"
        # Others are served, and it is served again once it reads.
        assert (await ps.status()).serving
        stream.connection._stream.resume()  # type: ignore[attr-defined]
        answered = {(await stream.receive()).number for _ in range(MANY)}
        assert answered == set(range(1, MANY + 1))
        await stream.connection.close()


async def test_a_trainer_that_has_read_nothing_may_vanish(start_owner: StartOwner) -> None:
    owner = await start_owner("ps0", limits=Limits(max_in_flight=IN_FLIGHT))
    async with tc.connect(owner.address) as ps:
        layer = await ps.module(torch.nn.Linear, 125, 128)
        stream = await moved(owner)
        (connection,) = owner.servicer.direct._connections.values()
        connection._stream._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        await send_many(stream, layer)
        await waiting.until(lambda: not connection._stream.reading)
        stream.connection.cut()  # type: ignore[attr-defined]
        await waiting.until(lambda: not owner.servicer.direct._connections)
        assert (await ps.status()).serving
