"""Moves to a direct connection that a trainer has given up, and whose greeting reaches the owner nevertheless."""

from __future__ import annotations

import asyncio

import pytest

import trainer_client as tc
from ps_service.rpc.session_stream import SessionStream
from ps_service.server import Server
from ps_wire.connections.connection import Connection
from ps_wire.connections.frames import Packet
from ps_wire.direct import DirectConnection
from ps_wire.v1.frames_pb2 import DirectOffer
from tests import waiting
from tests.integration.support import COUNTER
from trainer_client.session import link
from trainer_client.transport.grpc_stream import GrpcConnection, GrpcConnector


class Late(Connection):
    """A trainer's end of a connection on which nothing gets through before it `arrives`, not even that it is closed."""

    def __init__(self, inner: DirectConnection) -> None:
        self._inner = inner
        self._sent: list[Packet] = []

    async def send(self, packet: Packet) -> None:
        self._sent.append(packet)

    async def receive(self) -> Packet | None:
        return await asyncio.get_running_loop().create_future()

    async def close(self) -> None:
        pass

    async def arrives(self) -> None:
        for packet in self._sent:
            await self._inner.send(packet)

    async def ends(self) -> None:
        await self._inner.close()


class LateConnector(GrpcConnector):
    """Leads to an owner over gRPC at once, and over a direct connection late."""

    streams = 0
    late: Late

    async def connect(self) -> GrpcConnection:
        self.streams += 1
        return await super().connect()

    async def connect_direct(self, offer: DirectOffer) -> Connection:  # type: ignore[override]
        self.late = Late(await super().connect_direct(offer))
        return self.late


@pytest.fixture
def line(owner: Server, monkeypatch: pytest.MonkeyPatch) -> LateConnector:
    monkeypatch.setattr(link, "_MOVE_PATIENCE", 0.05)
    return LateConnector(owner.address)


async def test_one_that_was_closed_does_not_end_the_stream_that_is_in_use(owner: Server, line: LateConnector) -> None:
    async with tc.connect(line, shared_memory=False) as ps:
        counter = await ps.create(COUNTER)
        (session,) = owner.engine.sessions.all()
        await line.late.arrives()
        await line.late.ends()
        await waiting.until(lambda: not len(owner.engine.direct))
        assert await counter.add() == 1
        assert (line.streams, session.transport) == (1, "grpc")


async def test_answers_that_it_knows_nothing_of_are_kept(
    owner: Server, line: LateConnector, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with tc.connect(line, shared_memory=False) as ps:
        counter = await ps.create(COUNTER)
        cache = owner.engine.reply_cache
        await waiting.until(lambda: not len(cache))
        with monkeypatch.context() as patch:
            # The answer does not reach the trainer before the owner has read the greeting.
            patch.setattr(SessionStream, "send", lambda *_: None)
            adding = counter.add()
            await waiting.until(lambda: len(cache))
        (session,) = owner.engine.sessions.all()
        await line.late.arrives()
        await waiting.until(lambda: session.transport == "direct")
        await line.late.ends()
        # The owner has ended the stream for it, so the trainer comes back, and sends the request again.
        assert await adding == 1
        assert (await counter.get(), line.streams) == (1, 2)
        await waiting.until(lambda: not len(cache))
