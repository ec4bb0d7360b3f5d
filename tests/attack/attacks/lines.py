"""Attacks on connections: without TLS, with wrong certificates, and from other users of the host."""

from __future__ import annotations

import asyncio
import datetime
import os
import socket
import ssl
import sys
from contextlib import suppress

import trainer_client as tc
from ps_wire.connections.connection import ConnectionBroken
from ps_wire.connections.frames import Packet
from ps_wire.limits import MIB, PROTOCOL
from ps_wire.shared_memory.hosts import host_id
from ps_wire.tls import TLS
from ps_wire.v1.frames_pb2 import Frame, Hello
from ps_wire.v1.operations_pb2 import StatusRequest
from tests.attack.attack import Skipped, attack
from tests.attack.scene import Scene
from tests.integration.tls.authority import Authority
from trainer_client.transport.channels import UnaryRequests
from trainer_client.transport.offers import open_shared_memory

NOBODY = 65534

HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)
"""How a connection of HTTP/2 begins."""


def ports(at: Scene) -> dict[str, int]:
    grpc, http = (int(each.rpartition(":")[2]) for each in (at.address, at.server.http_address))
    return {"grpc": grpc, "direct": at.direct_port, "http": http}


def _answer(port: int, sent: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), 5.0) as sock, suppress(ConnectionError):
        sock.sendall(sent)
        found = b""
        while len(found) < 4096 and (more := sock.recv(4096)):
            found += more
        return found
    return b""


@attack(
    "speaks plain text on each port of an owner with TLS: frames of HTTP/2, tokens of direct connections, HTTP",
    "each closes with an alert at most, and serves nothing",
    quick=True,
    tls=True,
)
async def downgrade_to_plain_text(at: Scene) -> None:
    texts = (HTTP2, b"ps-wire1" + bytes(32), b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    for name, port in ports(at).items():
        for sent in texts:
            at.tried += 1
            found = await asyncio.to_thread(_answer, port, sent)
            at.hold(len(found) <= 7, f"{name} answers {sent[:8]!r} with {found[:60]!r}")
    await at.refused(tc.connect(at.address, connect_timeout=0.0), "a trainer without TLS", tc.PsError)


@attack(
    "shows no certificate, a foreign, an expired, and one that is not valid yet; speaks TLS 1.2",
    "no port serves it",
    quick=True,
    tls=True,
)
async def show_a_wrong_certificate(at: Scene) -> None:
    authority = at.authority
    assert authority is not None
    now = datetime.datetime.now(datetime.UTC)
    day = datetime.timedelta(days=1)
    other = Authority(at.folder, "other")
    strangers = {
        "none": TLS(authority.ca),
        "foreign": TLS(authority.ca, *other.issue("stranger")),
        "expired": TLS(authority.ca, *authority.issue("old", not_before=now - 2 * day, not_after=now - day)),
        "not yet valid": TLS(authority.ca, *authority.issue("young", not_before=now + day, not_after=now + 2 * day)),
    }
    contexts = {name: each.context() for name, each in strangers.items()}
    old = contexts["TLS 1.2"] = authority.trainer().context()
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    right = authority.trainer().context()
    for listener, port in ports(at).items():
        found = await asyncio.to_thread(_encrypted, right, listener, port)
        at.hold(found if listener != "direct" else found == b"", f"{listener} refuses the right one")
    for name, context in contexts.items():
        for listener, port in ports(at).items():
            if (listener, name) == ("grpc", "TLS 1.2"):
                continue  # gRPC has no option for it; owners of `ps-service serve` leave it no cipher
            at.tried += 1
            found = await asyncio.to_thread(_encrypted, context, listener, port)
            # The direct port says nothing to those that it takes, either: they have no token of it.
            at.hold(
                found is None or (found == b"" and listener != "direct"),
                f"{listener} serves one whose certificate is {name}: {found!r}",
            )
    for name, tls in strangers.items():
        unary = UnaryRequests(tls, token=at.identities.tokens["admin"])
        await at.refused(unary.ask(at.address, "Status", StatusRequest(), 2.0), name, tc.errors.UnavailableError)
        await unary.close()


def _encrypted(context: ssl.SSLContext, listener: str, port: int) -> bytes | None:
    """What a listener answers; None if it has refused the handshake."""
    context.set_alpn_protocols(["h2" if listener == "grpc" else "http/1.1"])
    sent = HTTP2 if listener == "grpc" else b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    try:
        with (
            socket.create_connection(("127.0.0.1", port), 5.0) as raw,
            context.wrap_socket(raw, server_hostname="127.0.0.1") as sock,
        ):
            sock.sendall(sent)
            return sock.recv(100)
    except (ssl.SSLError, ConnectionError):
        return None


@attack(
    "stands in for an owner with certificates of another authority, for another name, and without TLS",
    "no trainer says anything to it",
    quick=True,
    tls=True,
)
async def stand_in_for_an_owner(at: Scene) -> None:
    authority = at.authority
    assert authority is not None
    other = Authority(at.folder, "other")
    for name, (cert, key) in {
        "foreign": other.issue("owner"),
        "wrong name": authority.issue("elsewhere", "elsewhere.example"),
        "plain": (None, None),
    }.items():
        heard: list[bytes] = []

        async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, to: list[bytes] = heard) -> None:
            to.append(await reader.read(1000))
            writer.close()

        context = None
        if cert is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(cert, key)
            context.set_alpn_protocols(["h2"])
        async with await asyncio.start_server(hear, "127.0.0.1", 0, ssl=context) as impostor:
            port = impostor.sockets[0].getsockname()[1]
            asked = tc.connect(
                f"127.0.0.1:{port}", tls=authority.trainer(), token=at.identities.tokens["admin"], connect_timeout=0.0
            )
            await at.refused(asked, name, tc.PsError)
        sent = b"".join(heard)
        at.hold(at.identities.tokens["admin"].encode() not in sent and b"PRI" not in sent, f"{name}: it heard {sent!r}")


@attack(
    "connects to the socket of shared memory with guessed, used and others' tokens, as the same user",
    "nobody is admitted, and the right token is good once",
    quick=True,
)
async def guess_a_token_of_shared_memory(at: Scene) -> None:
    if not host_id():
        raise Skipped("shared memory needs Linux")
    trainer = b"m" * 16
    offer = (await at.hello(trainer=trainer, host=host_id())).welcome.shared_memory
    at.hold(offer.token, "there is no offer")
    for who, token in (
        (at.innocent.ps.trainer, offer.token),
        (trainer, offer.token),
        (trainer, b"guess"),
        (trainer, b""),
    ):
        at.tried += 1
        connection = open_shared_memory(offer, MIB)
        await connection.send(
            Packet(Frame(hello=Hello(protocol=PROTOCOL, trainer=who, host=host_id(), shared_memory_token=token)))
        )
        try:
            answer = await connection.receive()
        except ConnectionBroken:
            answer = None
        at.hold(answer is None or not answer.frame.HasField("welcome"), f"{token!r} of {who!r} is admitted")
        await connection.close()


_CONNECT = """
import os, socket, sys
user, name = int(sys.argv[1]), bytes.fromhex(sys.argv[2])
os.setgid(user); os.setuid(user)
with socket.socket(socket.AF_UNIX) as sock:
    sock.settimeout(0.5)
    try:
        sock.connect(b"\\0" + name)
        print("closed" if sock.recv(1) == b"" else "answered")
    except TimeoutError:
        print("open")
    except OSError:
        print("closed")
"""


@attack(
    "connects to the socket of shared memory as another user of the host",
    "the kernel tells the owner, which closes at once",
)
async def connect_as_another_user(at: Scene) -> None:
    if os.geteuid() != 0 or not host_id():
        raise Skipped("only root can become another user")
    offer = (await at.hello(trainer=b"m" * 16, host=host_id())).welcome.shared_memory
    for user, expected in ((os.geteuid(), b"open"), (NOBODY, b"closed")):
        at.tried += 1
        arguments = (sys.executable, "-c", _CONNECT, str(user), bytes(offer.socket).hex())
        process = await asyncio.create_subprocess_exec(*arguments, stdout=-1, stderr=-1)
        out, err = await process.communicate()
        at.hold(out.strip() == expected, f"for the user {user} it is {out!r} {err[-200:]!r}")
