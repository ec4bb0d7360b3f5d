"""A socket that is encrypted in memory, however its bytes arrive."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from ps_wire.sockets.encrypted_socket import EncryptedSocket
from ps_wire.tls import TLS
from tests.integration.tls.authority import Authority


class OneByOne:
    """A socket that always has more to read, one byte at a time."""

    def __init__(self, content: bytes) -> None:
        self._content = iter(content)
        self.reads = 0

    def recv_into(self, buffer: memoryview) -> int:
        self.reads += 1
        for each in self._content:
            buffer[0] = each
            return 1
        raise BlockingIOError

    def send(self, content: bytes) -> int:
        return len(content)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair()
    with one, other:
        one.setblocking(False)
        other.setblocking(False)
        yield one, other


def both(one: EncryptedSocket, other: EncryptedSocket) -> None:
    for each in (one, other, one, other):
        try:
            each.shake()
        except BlockingIOError:
            continue


def test_what_is_encrypted_arrives(tmp_path: Path, pair: tuple[socket.socket, socket.socket]) -> None:
    authority = Authority(tmp_path)
    server = EncryptedSocket(pair[0], authority.server().context(), server_side=True)
    client = EncryptedSocket(pair[1], TLS(authority.ca).context(), server_hostname="127.0.0.1")
    both(client, server)
    content = bytes(range(256)) * 300
    for piece in client.encrypt([content[:10], content[10:]]):
        assert content[:10] not in bytes(piece)
        pair[1].sendall(piece)
    found = b""
    while len(found) < len(content):
        found += server.receive(100_000)
    assert found == content
    with pytest.raises(BlockingIOError):
        server.receive(1)


def test_a_hello_that_comes_byte_by_byte_is_read_without_recursion(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    incoming, hello = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = TLS(authority.ca).context()
    context.set_alpn_protocols(["x" * 200] * 8)
    client = context.wrap_bio(incoming, hello, server_hostname="127.0.0.1")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    sock = OneByOne(hello.read()[:-1])
    server = EncryptedSocket(sock, authority.server().context(), server_side=True)  # type: ignore[arg-type]
    with pytest.raises(BlockingIOError):
        server.shake()
    assert sock.reads > 1_500
