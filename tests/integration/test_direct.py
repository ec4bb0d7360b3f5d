"""Tests of sessions over a direct connection: when they use one, and that they go on without one."""

from __future__ import annotations

import asyncio
import ctypes
import socket
import struct
from typing import Any

import pytest
import torch

import trainer_client as tc
from ps_service.rpc import direct as listener
from ps_service.rpc.grpc_stream import GrpcStream
from ps_service.server import Server
from ps_wire.connections.connection import ConnectionBroken
from ps_wire.connections.frames import Packet
from ps_wire.direct import MAGIC, DirectConnection
from ps_wire.limits import MIB, PROTOCOL
from ps_wire.v1.frames_pb2 import DirectOffer, Frame, Hello
from tests import waiting
from tests.conftest import StartOwner, StartProcess
from tests.integration.support import COUNTER, Cuttable, engine
from tests.ports import ReservedPort
from trainer_client.session import link
from trainer_client.transport import offers
from trainer_client.transport.grpc_stream import GrpcConnector
from trainer_client.transport.offers import open_direct

DIRECT: dict[str, Any] = {"shared_memory": False}


async def transport(owner: Server, ps: tc.Client) -> str:
    """How the only session is connected, in the owner's words."""
    await ps.status()
    (session,) = owner.engine.sessions.all()
    return session.transport


def offer_of(owner: Server, trainer: bytes = b"t" * 16) -> DirectOffer:
    offer = owner.servicer.direct.offer(Hello(trainer=trainer))
    assert offer is not None
    return offer


async def closed(sock: socket.socket) -> bool:
    """Waits for the end of a connection to an owner, which sends nothing on it."""
    try:
        return await asyncio.get_running_loop().sock_recv(sock, 1) == b""
    except ConnectionResetError:
        return True


def dialled(owner: Server) -> socket.socket:
    # The kernel connects it before the owner accepts.
    sock = socket.create_connection(("127.0.0.1", owner.servicer.direct.port))
    sock.setblocking(False)
    return sock


# When it is used


async def test_a_trainer_uses_a_direct_connection_where_it_shares_no_memory(owner: Server) -> None:
    async with tc.connect(owner.address, **DIRECT) as ps:
        assert (await ps.status()).direct_connections == 1
        assert await transport(owner, ps) == "direct"
        (session,) = owner.engine.sessions.all()
        assert session.peer.startswith("127.0.0.1:")
    await waiting.until(lambda: not len(owner.engine.direct))


async def test_the_stream_stays_beside_it_also_if_the_trainer_is_faster_than_the_owner(
    owner: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    send, ended = GrpcStream.send, DirectConnection.closed
    welcomed: list[GrpcStream] = []
    beside: list[DirectConnection] = []

    async def send_late(stream: GrpcStream, packet: Packet) -> None:
        welcomed.append(stream)
        await send(stream, packet)
        await waiting.until(lambda: [each.transport for each in owner.engine.sessions.all()] == ["direct"])

    async def closed(connection: DirectConnection) -> None:
        beside.append(connection)
        await ended(connection)

    monkeypatch.setattr(GrpcStream, "send", send_late)
    monkeypatch.setattr(DirectConnection, "closed", closed)
    async with tc.connect(owner.address, **DIRECT):
        await waiting.until(lambda: beside)
        assert beside == list(owner.servicer.direct._connections.values())
        assert len(welcomed) == 1


async def test_shared_memory_is_preferred(owner: Server, ps: tc.Client) -> None:
    assert await transport(owner, ps) == "shared_memory"


async def test_it_can_be_switched_off_on_either_side(owner: Server) -> None:
    async with tc.connect(owner.address, direct=False, **DIRECT) as ps:
        assert await transport(owner, ps) == "grpc"
    async with Server(engine("ps1"), direct_port="off") as off, tc.connect(off.address, **DIRECT) as ps:
        assert await transport(off, ps) == "grpc"


async def test_the_command_line_chooses_the_port(start_process: StartProcess) -> None:
    process = await start_process("--no-shared-memory")
    async with tc.connect(process.address) as ps:
        assert (await ps.status()).direct_connections == 1
    process = await start_process("--no-shared-memory", "--direct-port", "off")
    async with tc.connect(process.address) as ps:
        assert (await ps.status()).direct_connections == 0


async def test_a_port_that_is_taken_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = Server(engine("ps1"), direct_port=taken.getsockname()[1])
        with pytest.raises(OSError, match="another owner, or another program"):
            await server.start()
        server.engine.close()


@pytest.mark.parametrize("nbytes", [0, 4, 4096, 5000, 65_536, MIB, MIB + 4, 5 * MIB + 4, 40 * MIB])
async def test_tensors_of_every_size_come_back_as_they_went(owner: Server, nbytes: int) -> None:
    async with tc.connect(owner.address, **DIRECT) as ps:
        counter = await ps.create(COUNTER)
        value = torch.arange(nbytes // 4, dtype=torch.int32)
        for _ in range(2):
            assert torch.equal(await counter.echo(value), value)
        assert await transport(owner, ps) == "direct"


async def test_small_calls_overtake_large_messages(owner: Server) -> None:
    async with tc.connect(owner.address, **DIRECT) as ps:
        counter = await ps.create(COUNTER)
        values = [torch.full((2 * MIB,), float(number)) for number in range(8)]
        large = [counter.echo(value) for value in values]
        for number in range(20):
            assert await counter.add() == number + 1
        assert all(map(torch.equal, await asyncio.gather(*large), values))


# Where it cannot be had


async def test_the_session_stays_on_grpc_if_the_port_refuses(owner: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    with ReservedPort() as unused:
        monkeypatch.setattr(owner.servicer.direct, "port", unused.number)
        async with tc.connect(owner.address, **DIRECT) as ps:
            assert await transport(owner, ps) == "grpc"


async def test_a_port_that_is_filtered_costs_a_moment_once(owner: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[int] = []

    async def silent(host: str, port: int) -> socket.socket:
        tries.append(port)
        return await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(offers, "_connected", silent)
    monkeypatch.setattr(offers, "_SECONDS", 0.05)
    line = Cuttable(GrpcConnector(owner.address))
    async with tc.connect(line, **DIRECT) as ps:
        counter = await ps.create(COUNTER)
        assert await counter.add() == 1
        await line.cut()
        assert await counter.add() == 2
        assert line.connections == 2 and len(tries) == 1
        assert await transport(owner, ps) == "grpc"


async def test_the_session_stays_on_grpc_if_the_port_accepts_and_is_silent(
    owner: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "_MOVE_PATIENCE", 2.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr(owner.servicer.direct, "port", silent.getsockname()[1])
        async with tc.connect(owner.address, connect_timeout=2.0, **DIRECT) as ps:
            assert await transport(owner, ps) == "grpc"


async def test_the_session_stays_on_grpc_if_the_token_is_refused(owner: Server) -> None:
    owner.servicer.direct._take_token = lambda token: None  # type: ignore[method-assign]
    async with tc.connect(owner.address, **DIRECT) as ps:
        assert await transport(owner, ps) == "grpc"


@pytest.mark.parametrize("address", ["unix:/tmp/there", "no-such-host.invalid:1", "127.0.0.1"])
async def test_a_host_that_has_no_such_port_breaks_the_connection(address: str) -> None:
    with pytest.raises(ConnectionBroken):
        await open_direct(DirectOffer(port=1, token=b"x" * 32), address)


# When it breaks


async def test_a_session_goes_on_over_a_new_one_when_it_is_cut(owner: Server) -> None:
    line = Cuttable(GrpcConnector(owner.address))
    async with tc.connect(line, **DIRECT) as ps:
        counter = await ps.create(COUNTER)
        for number in range(3):
            await line.cut()
            assert await counter.add() == number + 1
            assert await transport(owner, ps) == "direct"


async def test_a_connection_may_be_cut_in_the_middle_of_a_message(owner: Server) -> None:
    value = torch.arange(4 * MIB, dtype=torch.int32)
    async with tc.connect(owner.address, **DIRECT) as ps:
        counter = await ps.create(COUNTER)
        assert torch.equal(await counter.echo(value), value)
        for _ in range(3):
            before = owner.engine.counters.traffic["direct"].received
            echoed = counter.echo(value)
            await waiting.until(
                lambda before=before: owner.engine.counters.traffic["direct"].received > before + 2 * MIB, 0
            )
            for connection in list(owner.servicer.direct._connections.values()):
                connection.cut()
            assert torch.equal(await echoed, value)
        assert await transport(owner, ps) == "direct"


async def test_a_session_moves_to_grpc_if_its_direct_connections_break_again_and_again(owner: Server) -> None:
    value = torch.arange(MIB, dtype=torch.int32)

    async def cut_all() -> None:
        (session,) = owner.engine.sessions.all()
        while True:
            await waiting.until(lambda: session.transport == "direct")
            for connection in list(owner.servicer.direct._connections.values()):
                connection.cut()
            await asyncio.sleep(0)

    async with tc.connect(owner.address, **DIRECT) as ps:
        counter = await ps.create(COUNTER)
        cutting = asyncio.create_task(cut_all())
        assert torch.equal(await counter.options(timeout=60).echo(value), value)
        cutting.cancel()
        assert await counter.add() == 1
        assert await transport(owner, ps) == "grpc"


async def test_a_session_goes_on_if_only_the_path_of_the_direct_connection_is_lost(
    owner: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offers, "_LOOK_SECONDS", 0.05)
    monkeypatch.setattr(offers, "_SILENT_SECONDS", 0.3)
    async with tc.connect(owner.address, **DIRECT) as ps:
        counter = await ps.create(COUNTER)
        assert await counter.add() == 1
        drop_all(owner)
        assert await counter.options(timeout=60).add() == 2
        assert await transport(owner, ps) == "direct"


async def test_the_path_of_an_idle_connection_is_watched_too(owner: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offers, "_KEEP_ALIVE", dict.fromkeys(offers._KEEP_ALIVE, 1))
    connection = await open_direct(offer_of(owner), owner.address)
    assert await first_frame(connection, b"t" * 16) == "welcome"
    drop_all(owner)
    async with asyncio.timeout(60):
        with pytest.raises(ConnectionBroken):
            await connection.receive()


def drop_all(owner: Server) -> None:
    """Lets the kernel drop what arrives on the open direct connection, as a firewall that has forgotten it does."""
    (connection,) = owner.servicer.direct._connections.values()
    program = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))  # return 0: nothing of a packet is kept
    attach_filter = 26
    connection._stream._sock.setsockopt(
        socket.SOL_SOCKET, attach_filter, struct.pack("HP", 1, ctypes.addressof(program))
    )


async def test_a_trainer_finds_a_restarted_owner_over_a_direct_connection_again() -> None:
    port = ReservedPort()
    first = Server(engine("ps0"), port.address, direct_port=0)
    await first.start()
    async with tc.connect(first.address, **DIRECT) as ps:
        assert await transport(first, ps) == "direct"
        await first.stop()
        async with Server(engine("ps0"), first.address, direct_port=0) as second:
            with pytest.raises(tc.errors.SessionLostError):
                await ps.status()
            assert await (await ps.create(COUNTER)).add() == 1
            assert await transport(second, ps) == "direct"


# Strangers


async def test_a_token_opens_one_connection_of_its_trainer(owner: Server) -> None:
    offer = offer_of(owner)
    first, again = await open_direct(offer, owner.address), await open_direct(offer, owner.address)
    assert await first_frame(first, b"t" * 16) == "welcome"
    with pytest.raises(ConnectionBroken):
        await first_frame(again, b"t" * 16)
    other = await open_direct(offer_of(owner), owner.address)
    assert await first_frame(other, b"u" * 16) == "refusal"
    for connection in (first, again, other):
        await connection.close()


async def first_frame(connection: DirectConnection, trainer: bytes) -> str | None:
    await connection.send(Packet(Frame(hello=Hello(protocol=PROTOCOL, trainer=trainer))))
    packet = await connection.receive()
    return None if packet is None else packet.frame.WhichOneof("body")


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\n\r\n", b"p", MAGIC + bytes(32), bytes(100)])
async def test_a_stranger_costs_no_connection(owner: Server, sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "_TOKEN_SECONDS", 0.05)
    with dialled(owner) as sock:
        sock.send(sent)
        assert await closed(sock)
    assert not len(owner.engine.direct) and not owner.servicer.direct._arrivals


async def test_a_silent_connection_is_closed(owner: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "_TOKEN_SECONDS", 0.05)
    with dialled(owner) as sock:
        assert await closed(sock)
    assert not owner.servicer.direct._arrivals


async def test_the_oldest_of_too_many_silent_connections_is_closed(
    owner: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "_MOST_WAITING", 3)
    socks = [dialled(owner) for _ in range(5)]
    assert await closed(socks[0]) and await closed(socks[1])
    assert len(owner.servicer.direct._arrivals) == 3
    # A trainer is let in nevertheless.
    async with tc.connect(owner.address, **DIRECT) as ps:
        assert await transport(owner, ps) == "direct"
    for sock in socks:
        sock.close()


@pytest.mark.parametrize("sent", [b"\xff" * 100, b"\x09" + bytes(16), b"\x00\xff\xff\xff\xff" + bytes(12)])
async def test_garbage_after_the_token_closes_the_connection(owner: Server, sent: bytes) -> None:
    with dialled(owner) as sock:
        sock.send(MAGIC + offer_of(owner).token)
        await waiting.until(lambda: len(owner.engine.direct) == 1)
        sock.send(sent)
        assert await closed(sock)
    await waiting.until(lambda: not len(owner.engine.direct))


async def test_an_owner_that_stops_closes_the_port(start_owner: StartOwner) -> None:
    server = await start_owner("ps1")
    with dialled(server) as sock:
        await server.stop()
        assert await closed(sock)
        with pytest.raises(ConnectionRefusedError):
            dialled(server)
