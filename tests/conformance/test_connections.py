"""Every connection there is keeps what `ps_wire.connections.connection` promises."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from ps_service.rpc.grpc_stream import OPTIONS, GrpcStream
from ps_wire.connections import frames
from ps_wire.connections.connection import Connection, ConnectionBroken
from ps_wire.errors import InvalidArgumentError
from ps_wire.limits import PART_BYTES
from tests.conformance.connection_suite import ConnectionSuite, Ends, Host, Serve, Way, packet
from tests.conformance.relay import Relay
from trainer_client.transport.faulty import Fault, FaultyConnector
from trainer_client.transport.grpc_stream import GrpcConnector
from trainer_client.transport.in_process import MemoryConnector


class TestMemory(ConnectionSuite):
    """Two ends in one process."""

    __test__ = True

    @asynccontextmanager
    async def way(self, serve: Serve) -> AsyncIterator[Way]:
        served: list[Any] = []

        async def noted(connection: Connection) -> None:
            served.append(connection)
            await serve(connection)

        yield Way(MemoryConnector(noted), lambda: served[-1].cut())


class TestGrpc(ConnectionSuite):
    """A stream to a real gRPC server, over a socket that can be cut."""

    __test__ = True
    owner_sees_cuts = False

    @asynccontextmanager
    async def way(self, serve: Serve) -> AsyncIterator[Way]:
        async def session(_: Any, context: Any) -> None:
            await serve(GrpcStream(context))

        async with serving(session, frames.parse, frames.serialize) as port, Relay(port) as relay:
            yield Way(GrpcConnector(relay.address), relay.cut)

    async def test_a_server_that_stops_cuts_its_streams(self, host: Host) -> None:
        async def session(_: Any, context: Any) -> None:
            await host.serve(GrpcStream(context))

        async with serving(session, frames.parse, frames.serialize) as port:
            ends = await host.ends(Way(GrpcConnector(f"127.0.0.1:{port}"), lambda: None))
        for _ in range(2):
            with pytest.raises(ConnectionBroken):
                await ends.near.receive()
            with pytest.raises(ConnectionBroken):
                await ends.near.send(packet(1))
            with pytest.raises(ConnectionBroken):
                await ends.far.receive()
            with pytest.raises(ConnectionBroken):
                await ends.far.send(packet(1))
        await ends.near.close()

    async def test_an_address_without_a_server_is_a_broken_connection(self) -> None:
        async with Relay(0) as relay:
            address = relay.address
        connection = await GrpcConnector(address).connect()
        for _ in range(2):
            with pytest.raises(ConnectionBroken):
                await connection.send(packet(1))
            with pytest.raises(ConnectionBroken):
                await connection.receive()
        await connection.close()

    async def test_an_owner_that_sends_no_frames_is_a_broken_connection(self) -> None:
        async def session(_: Any, context: Any) -> None:
            await context.write(b"\xff\xff\xff")
            await context.read()

        async with serving(session, None, None) as port:
            connection = await GrpcConnector(f"127.0.0.1:{port}").connect()
            with pytest.raises(ConnectionBroken, match="not a frame"):
                await connection.receive()
            await connection.close()

    async def test_a_trainer_that_sends_no_frames_is_an_invalid_argument(self) -> None:
        outcome: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()

        async def session(_: Any, context: Any) -> None:
            try:
                await GrpcStream(context).receive()
            except InvalidArgumentError as error:
                outcome.set_result(error)

        async with (
            serving(session, frames.parse, frames.serialize) as port,
            grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
        ):
            call = channel.stream_stream("/ps_wire.v1.Owner/Session")()
            await call.write(b"\xff\xff\xff")
            assert "not a frame" in str(await outcome)
            assert await call.read() is grpc.aio.EOF


class TestFaultyMemory(TestMemory):
    """The transport that breaks on purpose, when it was told to break nothing."""

    @asynccontextmanager
    async def way(self, serve: Serve) -> AsyncIterator[Way]:
        async with super().way(serve) as way:
            yield Way(FaultyConnector(way.connector, lambda *_: Fault.NONE), way.cut)


class TestFaultyGrpc(ConnectionSuite):
    """The same over gRPC."""

    __test__ = True
    owner_sees_cuts = TestGrpc.owner_sees_cuts

    @asynccontextmanager
    async def way(self, serve: Serve) -> AsyncIterator[Way]:
        async with TestGrpc().way(serve) as way:
            yield Way(FaultyConnector(way.connector, lambda *_: Fault.NONE), way.cut)

    # The largest frame crosses gRPC, and a connector that may break streams, in the tests of these.
    @pytest.mark.parametrize("nbytes", [PART_BYTES], ids=["a part"])
    async def test_large_payloads_arrive_whole(self, ends: Ends, nbytes: int) -> None:
        await super().test_large_payloads_arrive_whole(ends, nbytes)


@asynccontextmanager
async def serving(session: Any, parse: Any, serialize: Any) -> AsyncIterator[int]:
    """A gRPC server whose `Session` is this handler; yields its port."""
    method = grpc.stream_stream_rpc_method_handler(session, request_deserializer=parse, response_serializer=serialize)
    server = grpc.aio.server(options=OPTIONS)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("ps_wire.v1.Owner", {"Session": method}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield port
    finally:
        await server.stop(0)
