"""Trainers reach owners over TLS on every transport, and nobody else does."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
import torch
from torch import nn

import trainer_client as tc
from ps_service.engine import Engine
from ps_service.server import Server
from ps_wire.tls import ServerTLS
from ps_wire.v1.operations_pb2 import StatusRequest
from tests import hosted_models
from tests.allowed import allowed
from tests.integration.support import COUNTER
from tests.integration.tls.authority import Authority
from trainer_client.transport.channels import UnaryRequests

TRANSPORTS = {"grpc": False, "direct": True}


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@asynccontextmanager
async def serving(tls: ServerTLS, direct: bool = True, http: str = "") -> AsyncIterator[Server]:
    engine = Engine("ps0", allowed(hosted_models))
    async with Server(engine, direct_port=0 if direct else "off", tls=tls, http=http) as server:
        yield server


def transports_of(server: Server) -> list[str]:
    return [each.transport for each in server.engine.sessions.all()]


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("asks", [False, True], ids=["server", "mutual"])
async def test_a_pass_is_that_of_local_torch(authority: Authority, transport: str, asks: bool) -> None:
    tls = authority.trainer() if asks else tc.TLS(authority.ca)
    async with (
        serving(authority.server(asks=asks), TRANSPORTS[transport]) as server,
        tc.connect(server.address, tls=tls, shared_memory=False) as ps,
    ):
        net = await ps.module("torch.nn.Linear", 64, 64, seed=1)
        opt = await ps.optimizer(torch.optim.Adam, net.parameters(), lr=0.1)
        torch.manual_seed(1)
        local = nn.Linear(64, 64)
        local_opt = torch.optim.Adam(local.parameters(), lr=0.1)
        for i in range(3):
            x = torch.randn(4, 64, generator=torch.Generator().manual_seed(i))
            async with ps.context() as ctx:
                await ctx.backward((await net(x)).square().sum())
                await opt.step(ctx)
            local_opt.zero_grad()
            local(x).square().sum().backward()
            local_opt.step()
        assert transports_of(server) == [transport]
        assert {name: each.tolist() for name, each in (await net.state_dict()).items()} == {
            name: each.tolist() for name, each in local.state_dict().items()
        }


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_large_messages_cross_each_other(authority: Authority, transport: str) -> None:
    async with (
        serving(authority.server(), TRANSPORTS[transport]) as server,
        tc.connect(server.address, tls=tc.TLS(authority.ca), shared_memory=False) as ps,
    ):
        counter = await ps.create(COUNTER)
        sent = [torch.randn(n, generator=torch.Generator().manual_seed(n)) for n in (1, 100, 20_000, 1_000_000) * 3]
        found = await asyncio.gather(*(counter.echo(each) for each in sent))
        assert all(torch.equal(*each) for each in zip(sent, found, strict=True))
        assert transports_of(server) == [transport]


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_who_is_not_trusted_is_not_served(authority: Authority, tmp_path: Path, transport: str) -> None:
    other = Authority(tmp_path, "other")
    strangers = {
        "nothing": None,
        "no certificate": tc.TLS(authority.ca),
        "another authority's": tc.TLS(authority.ca, *other.issue("stranger")),
        "an owner of another authority": tc.TLS(other.ca, *authority.issue("trainer")),
        "another name": tc.TLS(authority.ca, *authority.issue("trainer"), server_name="elsewhere.example"),
    }
    async with serving(authority.server(asks=True), TRANSPORTS[transport]) as server:
        for what, tls in strangers.items():
            with pytest.raises(tc.errors.UnavailableError):
                await tc.connect(server.address, tls=tls, connect_timeout=0.0)
            assert len(server.engine.sessions.all()) == 0, what
        async with tc.connect(server.address, tls=authority.trainer()) as ps:
            assert await (await ps.create(COUNTER)).add() == 1


async def test_the_direct_port_takes_nobody_who_is_not_trusted(authority: Authority) -> None:
    async with serving(authority.server(asks=True)) as server:
        address = ("127.0.0.1", server.servicer.direct.port)

        def plain() -> bytes:
            with socket.create_connection(address) as sock, suppress(ConnectionResetError):
                sock.sendall(b"ps-wire1" + bytes(32))
                return sock.recv(1)
            return b""

        def encrypted(context: ssl.SSLContext) -> bytes:
            with (
                socket.create_connection(address) as raw,
                context.wrap_socket(raw, server_hostname="127.0.0.1") as sock,
            ):
                with suppress(ssl.SSLEOFError):  # the owner has refused it already, and what it says waits
                    sock.sendall(b"no token")
                return sock.recv(1)

        assert await asyncio.to_thread(plain) in (b"", b"\x15"), "at most an alert"
        with pytest.raises(ssl.SSLError, match=r"(?i)certificate.required"):
            await asyncio.to_thread(encrypted, tc.TLS(authority.ca).context())
        old = authority.trainer().context()
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises(ssl.SSLError, match=r"(?i)protocol.version"):
            await asyncio.to_thread(encrypted, old)
    async with serving(replace(authority.server(asks=True), min_version="1.2")) as server:
        address = ("127.0.0.1", server.servicer.direct.port)
        assert await asyncio.to_thread(encrypted, old) == b"", "it has no token"


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_new_certificate_is_used_without_a_restart(authority: Authority, transport: str) -> None:
    async with serving(authority.server(), TRANSPORTS[transport]) as server:

        async def serial() -> bytes:
            pem = await asyncio.to_thread(
                ssl.get_server_certificate, ("127.0.0.1", int(server.address.rpartition(":")[2]))
            )
            return pem.encode()

        first = await serial()
        authority.issue("owner")
        second = await serial()
        assert first != second
        async with tc.connect(server.address, tls=tc.TLS(authority.ca), shared_memory=False) as ps:
            assert await (await ps.create(COUNTER)).add() == 1
            assert transports_of(server) == [transport]
        # In the middle of a change, the certificate before stays.
        authority.key_of("owner").write_bytes(b"")
        assert await serial() == second


async def test_an_owner_that_dns_has_told_of_is_known_by_that_name(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_up = socket.getaddrinfo

    def known(host: str, *more: object, **options: object) -> object:
        return look_up("127.0.0.1" if host == "ps.example" else host, *more, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", known)
    tls = tc.TLS(authority.ca)
    async with serving(authority.server("ps.example")) as server:
        port = server.address.rpartition(":")[2]
        # The owner is reached, and knows nobody of that name.
        with pytest.raises(tc.errors.UnknownNameError):
            await tc.connect("nobody", directory=f"ps.example:{port}", tls=tls, connect_timeout=0.2)
        with pytest.raises(tc.errors.UnavailableError):
            await tc.connect("nobody", directory=f"127.0.0.1:{port}", tls=tls, connect_timeout=0.2)


async def test_the_page_is_encrypted(authority: Authority) -> None:
    async with (
        serving(authority.server(), http="127.0.0.1:0") as server,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tc.TLS(authority.ca).context())) as http,
    ):
        assert server.http_url.startswith("https://")
        async with http.get(f"{server.http_url}/healthz") as answer:
            assert answer.status == 200
        with pytest.raises(aiohttp.ClientError):
            await http.get(f"http://{server.http_address}/healthz")


async def test_unary_methods_are_encrypted(authority: Authority) -> None:
    async with serving(authority.server(asks=True)) as server:
        for tls, is_answered in ((authority.trainer(), True), (tc.TLS(authority.ca), False), (None, False)):
            unary = UnaryRequests(tls)
            try:
                reply = await unary.ask(server.address, "Status", StatusRequest(), 2.0)
                assert is_answered and reply.owner == "ps0"
            except tc.errors.UnavailableError:
                assert not is_answered
            finally:
                await unary.close()


def test_variables_name_the_certificates(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tc.TLS.of_variables() is None
    monkeypatch.setenv("PS_TLS_CA", str(authority.ca))
    assert tc.TLS.of_variables() == tc.TLS(str(authority.ca))


def test_files_that_cannot_be_used_are_named(authority: Authority, tmp_path: Path) -> None:
    with pytest.raises(tc.errors.InvalidArgumentError, match="give cert and key together"):
        tc.TLS(cert=authority.ca)
    with pytest.raises(tc.errors.InvalidArgumentError, match=r"no-such\.pem"):
        tc.TLS(ca=tmp_path / "no-such.pem").read()
    with pytest.raises(tc.errors.InvalidArgumentError, match=r"the file .*no-such\.pem of TLS cannot be read"):
        Server(Engine("ps0", allowed(hosted_models)), tls=ServerTLS(tmp_path / "no-such.pem", authority.ca))
    cert, _ = authority.issue("owner")
    with pytest.raises(tc.errors.InvalidArgumentError, match="no certificate in PEM and its private key"):
        ServerTLS(cert, authority.ca).context()
    with pytest.raises(ValueError, match="not encrypted"):
        Server(Engine("ps0", allowed(hosted_models)), "0.0.0.0:0")
    Server(Engine("ps0", allowed(hosted_models)), "0.0.0.0:0", tls=authority.server())
