"""The trainer's end of a gRPC stream, when gRPC does not behave."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from ps_service.server import Server
from ps_wire.connections.connection import ConnectionBroken
from ps_wire.connections.frames import Packet
from ps_wire.v1.frames_pb2 import Frame
from tests.integration.support import HandMade
from trainer_client.transport.grpc_stream import GrpcConnector

ERRORS = (
    grpc.aio.InternalError("execute_batch failed"),
    grpc.aio.UsageError("done"),
    asyncio.InvalidStateError("done"),
)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_closing_a_stream_that_is_gone_is_no_error(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = await GrpcConnector("127.0.0.1:1").connect()

    async def fail() -> None:
        raise error

    monkeypatch.setattr(connection._call, "done_writing", fail)
    await connection.close()


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_whatever_grpc_says_about_a_stream_that_is_gone_it_is_broken(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = await GrpcConnector("127.0.0.1:1").connect()

    async def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(connection._call, "write", fail)
    with pytest.raises(ConnectionBroken, match=str(error)):
        await connection.send(Packet(Frame()))
    await connection.close()


async def test_a_receiver_that_is_cancelled_leaves_the_stream_whole(owner: Server) -> None:
    # gRPC would cancel the stream with its read, and report that later, when the event loop may have closed.
    stream = HandMade(await GrpcConnector(owner.address).connect())
    receiving = asyncio.create_task(stream.receive())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    receiving.cancel()
    await asyncio.wait([receiving])
    await stream.send(Frame(hello=stream.hello()))
    assert (await stream.receive()).HasField("welcome")
    await stream.connection.close()
    assert await stream.connection._call.code() is grpc.StatusCode.OK  # type: ignore[attr-defined]
