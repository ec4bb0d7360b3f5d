"""A socket that is encrypted, however its bytes arrive, and however many it takes."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import ssl
import struct
from collections.abc import Iterator

import pytest

from ps_wire.connections.connection import ConnectionBroken
from ps_wire.sockets.encrypted_socket import EncryptedSocket
from ps_wire.sockets.tcp_socket import TlsSocket
from ps_wire.tls import TLS
from tests.integration.tls.authority import Authority
from tests.ps_wire.sockets.test_stream_socket import Collecting

Pair = tuple[EncryptedSocket, EncryptedSocket]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two ends of TCP, each with a small buffer."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    with near, far:
        for each in (near, far):
            each.setblocking(False)
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        yield near, far


@pytest.fixture
def pair(authority: Authority, sockets: tuple[socket.socket, socket.socket]) -> Iterator[Pair]:
    client = EncryptedSocket(sockets[0], TLS(authority.ca).context(), server_hostname="127.0.0.1")
    server = EncryptedSocket(sockets[1], authority.server().context(), server_side=True)
    with client.sock, server.sock:
        waiting = [client, server]
        while waiting:
            try:
                waiting[0].shake()
                waiting.pop(0)
            except BlockingIOError:
                waiting.reverse()
        yield client, server


def all_of(receiver: EncryptedSocket, nbytes: int) -> bytes:
    found = b""
    while len(found) < nbytes:
        try:
            found += receiver.receive(100_000)
        except BlockingIOError:
            continue
    return found


def test_what_is_encrypted_arrives(pair: Pair) -> None:
    client, server = pair
    content = bytes(range(256)) * 8
    assert client.send_all([content[:10], content[10:]]) == len(content)
    assert all_of(server, len(content)) == content
    with pytest.raises(BlockingIOError):
        server.receive(1)


def test_of_a_record_that_is_longer_than_the_memory_the_rest_waits(pair: Pair) -> None:
    client, server = pair
    client.send(b"0123456789")
    found = b""
    while len(found) < 10:
        try:
            found += server.receive(4)
        except BlockingIOError:
            continue
        assert server.has_more == (len(found) < 10)
    assert found == b"0123456789"


async def carried(pair: Pair, writes: list[list[bytes]]) -> bytes:
    """What arrives of some writes, each of many pieces, the next of which may come while the last one waits."""
    collecting, ended = Collecting(), asyncio.Event()
    writer = TlsSocket(pair[0], Collecting(), lambda reason: None)
    reader = TlsSocket(pair[1], collecting, lambda reason: ended.set())
    async with asyncio.timeout(50):
        for number, pieces in enumerate(writes):
            writer.write(pieces)
            if number % 3 == 0:
                await asyncio.sleep(0)
        await writer.drained.wait()
        writer.close()
        await ended.wait()
    reader.close()
    return bytes(collecting.arrived)


@pytest.mark.parametrize("seed", range(5))
async def test_pieces_of_any_size_arrive_in_order_while_the_socket_is_full(pair: Pair, seed: int) -> None:
    chance = random.Random(seed)
    few, many = (1, 64, 4096, 4097, 16_384, 16_385, 70_000), (1, 3, 64)
    writes = [
        [chance.randbytes(chance.choice(few)) for _ in range(chance.choice((1, 2, 5)))]
        if chance.random() < 0.7
        else [chance.randbytes(chance.choice(many)) for _ in range(600)]
        for _ in range(12)
    ]
    assert await carried(pair, writes) == b"".join(piece for write in writes for piece in write)


async def test_what_has_arrived_is_read_after_a_write_that_fails(pair: Pair) -> None:
    client, server = pair
    server.send(b"the last words")
    server.sock.close()
    collecting, ended = Collecting(), asyncio.Event()
    stream = TlsSocket(client, collecting, lambda reason: ended.set())
    with pytest.raises(ConnectionBroken):
        while True:  # the first one may still be taken
            stream.write([b"x" * 1000])
    async with asyncio.timeout(50):
        await ended.wait()
    assert collecting.arrived == b"the last words"


def test_a_hello_that_comes_byte_by_byte_is_read(
    authority: Authority, sockets: tuple[socket.socket, socket.socket]
) -> None:
    incoming, hello = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = TLS(authority.ca).context().wrap_bio(incoming, hello, server_hostname="127.0.0.1")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    server = EncryptedSocket(sockets[1], authority.server().context(), server_side=True)
    with server.sock:
        for byte in hello.read():
            sockets[0].send(bytes([byte]))
            with pytest.raises(BlockingIOError):
                server.shake()
        with pytest.raises(BlockingIOError):
            server.receive(1)


def test_a_socket_that_is_not_connected_has_no_handshake(authority: Authority) -> None:
    with socket.socket() as sock:
        encrypted = EncryptedSocket(sock, TLS(authority.ca).context(), server_hostname="127.0.0.1")
    with encrypted.sock, pytest.raises(OSError, match="not connected"):
        encrypted.shake()


def test_a_socket_that_was_reset_is_closed(authority: Authority, sockets: tuple[socket.socket, socket.socket]) -> None:
    near, far = sockets
    number = far.fileno()
    near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    near.close()
    with pytest.raises(ConnectionResetError) as raised:
        EncryptedSocket(far, authority.server().context(), server_side=True)
    assert raised.tb is not None  # which keeps what is not closed
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(number)
