"""Opens the trainer's end of a direct connection, or one over shared memory. `Link` moves a session to it."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import os
import socket
from typing import TYPE_CHECKING, Any, Final

from ps_wire.connections.connection import ConnectionBroken
from ps_wire.direct import MAGIC, DirectConnection
from ps_wire.shared_memory.connection import SharedMemoryConnection
from ps_wire.shared_memory.hosts import host_id
from ps_wire.shared_memory.peers import PeerProcess, PeerWatch
from ps_wire.sockets.encrypted_socket import EncryptedSocket, shaken

if TYPE_CHECKING:
    import ssl

    from ps_wire.tls import TLS
    from ps_wire.v1.frames_pb2 import DirectOffer, SharedMemoryOffer

_SECONDS: Final = 1.0
"""Seconds that connecting may take: the session waits for it, and a port that may not be reached stays silent."""

_LOOK_SECONDS: Final = 5.0
"""Seconds between two looks at whether the owner acknowledges what was sent."""

_SILENT_SECONDS: Final = 15.0
"""Seconds without an acknowledgement after which a connection is cut. TCP would go on for a quarter of an hour."""

_KEEP_ALIVE: Final = {socket.TCP_KEEPIDLE: 5, socket.TCP_KEEPINTVL: 5, socket.TCP_KEEPCNT: 2}
"""After 5 s without a message, the kernel asks the other side for a sign of life, again after 5 s, and ends the
connection after two questions without an answer. Firewalls and address translation forget connections that are idle."""


def open_shared_memory(offer: SharedMemoryOffer, max_message_bytes: int) -> SharedMemoryConnection:
    """Connects to the socket that an owner has offered. Raises `ConnectionBroken` if another user listens there, or a
    process that cannot be seen from here."""
    if not host_id():
        raise ConnectionBroken("this system has no shared-memory connections")
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.connect(b"\0" + offer.socket)
        process = PeerProcess.of(sock)
        connection = SharedMemoryConnection(sock, max_message_bytes, offer.max_segment_bytes)
    except (OSError, LookupError) as error:
        # This process would not notice that one it cannot see has stopped. gRPC does.
        sock.close()
        raise ConnectionBroken(f"no shared-memory connection: {error}") from None
    PeerWatch().add(connection, process)
    return connection


async def open_direct(offer: DirectOffer, address: str, tls: TLS | None = None) -> DirectConnection:
    """Connects to the port that an owner has offered, which is encrypted as its gRPC port is. Raises `ConnectionBroken`
    if it is not reached in time, or its certificate is not trusted."""
    host = address.rpartition(":")[0].strip("[]")
    context, encrypted = None if tls is None else tls.context(), None
    try:
        async with asyncio.timeout(_SECONDS):
            sock = await _connected(host, offer.port)
            if tls is not None and context is not None:
                encrypted = await _encrypted(sock, context, tls.server_name or host)
                sock = encrypted.sock
    except TimeoutError:
        raise ConnectionBroken(f"port {offer.port} of {host} does not answer") from None
    except OSError as error:
        raise ConnectionBroken(f"port {offer.port} of {host} cannot be reached: {error}") from None
    try:
        # The buffer of a new socket has room for it.
        first = MAGIC + offer.token
        (encrypted or sock).send(first)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEP_ALIVE.items():
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
        connection = DirectConnection(encrypted or sock)
    except OSError as error:
        sock.close()
        raise ConnectionBroken(f"the direct connection broke: {error}") from None
    _look_later(connection)
    return connection


def _look_later(connection: DirectConnection) -> None:
    asyncio.get_running_loop().call_later(_LOOK_SECONDS, _look, connection)


def _look(connection: DirectConnection) -> None:
    """Cuts a connection whose path is lost while that of the gRPC stream beside it is not."""
    if connection.is_over:
        return
    if connection.silent_seconds > _SILENT_SECONDS:
        connection.cut("the owner does not acknowledge what was sent on the direct connection")
    else:
        _look_later(connection)


async def _encrypted(sock: socket.socket, context: ssl.SSLContext, name: str) -> EncryptedSocket:
    """The socket, once both sides have proved who they are. It is closed if that fails."""
    encrypted = EncryptedSocket(sock, context, server_hostname=name)
    try:
        await shaken(encrypted)
    except BaseException:
        encrypted.sock.close()
        raise
    return encrypted


async def _connected(host: str, port: int) -> socket.socket:
    """A socket that is connected to the first address of the host that can be reached."""
    failure: OSError = OSError(f"{host!r} has no address")
    for family, address in await _addresses(host, port):
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            await _connect(sock, address)
            return sock
        except OSError as error:
            sock.close()
            failure = error
        except BaseException:
            sock.close()
            raise
    raise failure


async def _connect(sock: socket.socket, address: Any) -> None:
    # Not `loop.sock_connect`: with that of uvloop, children that this process forks later crash when they end.
    sock.setblocking(False)
    error = sock.connect_ex(address)
    if error == errno.EINPROGRESS:
        loop = asyncio.get_running_loop()
        connected = asyncio.Event()
        loop.add_writer(sock.fileno(), connected.set)
        try:
            await connected.wait()
        finally:
            loop.remove_writer(sock.fileno())
        error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if error:
        raise OSError(error, os.strerror(error))


async def _addresses(host: str, port: int) -> list[tuple[int, Any]]:
    try:
        version = ipaddress.ip_address(host).version
    except ValueError:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return [(family, address) for family, _, _, _, address in found]
    return [(socket.AF_INET if version == 4 else socket.AF_INET6, (host, port))]
