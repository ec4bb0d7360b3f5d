"""Tests metrics and health over HTTP, from before an owner serves until after it has drained."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp.http_exceptions import BadHttpMessage
from prometheus_client.openmetrics import parser as openmetrics_parser
from prometheus_client.parser import text_string_to_metric_families

import trainer_client as tc
from ps_service.engine import Engine
from ps_service.hosting.allowlist import AllowList
from ps_service.monitoring.web import Web, WebLog
from ps_service.server import Server
from ps_wire.release import RELEASE
from tests.forking.process import Forking
from tests.ps_service import service_models
from tests.ps_service.service_models import Latch

ROOT = Path(__file__).parent.parent.parent.parent
HERE = "127.0.0.1:0"


def owner(name: str = "ps0") -> Engine:
    return Engine(name, AllowList([service_models]), threads=2)


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    # A server that ends while connections are kept would make the next request fail, as a balancer would see it.
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session:
        yield session


async def health(http: aiohttp.ClientSession, server: Server) -> tuple[int, dict[str, Any]]:
    async with http.get(f"http://{server.http_address}/healthz") as response:
        return response.status, await response.json()


# What it answers


async def test_an_owner_that_serves_is_healthy(http: aiohttp.ClientSession) -> None:
    async with Server(owner("ps7"), http=HERE) as server:
        status, told = await health(http, server)
        later = (await health(http, server))[1]
        async with http.head(f"http://{server.http_address}/healthz") as response:
            assert response.status == 200
    assert status == 200
    assert told.keys() == {"owner", "state", "version", "uptime_seconds"}
    assert (told["owner"], told["state"], told["version"]) == ("ps7", "serving", RELEASE)
    assert 0 <= told["uptime_seconds"] <= later["uptime_seconds"]


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("", "text/plain; version=0.0.4"),
        ("text/plain;version=0.0.4", "text/plain; version=0.0.4"),
        ("application/openmetrics-text;version=1.0.0,text/plain;q=0.5", "application/openmetrics-text; version=1.0.0"),
    ],
)
async def test_metrics_come_in_the_format_that_is_asked_for(
    http: aiohttp.ClientSession, accept: str, kind: str
) -> None:
    headers = {"Accept": accept, "Accept-Encoding": "gzip"}
    async with (
        Server(owner(), http=HERE) as server,
        http.get(f"http://{server.http_address}/metrics", headers=headers) as response,
    ):
        assert response.status == 200
        assert response.headers["Content-Type"].startswith(kind)
        assert response.headers["Content-Encoding"] == "gzip"
        text = await response.text()
    parse = openmetrics_parser if "openmetrics" in kind else None
    families = list((parse.text_string_to_metric_families if parse else text_string_to_metric_families)(text))
    assert {"ps_request_duration_seconds", "process_resident_memory_bytes"} <= {family.name for family in families}


async def test_each_owner_of_a_process_tells_its_own(http: aiohttp.ClientSession) -> None:
    async with Server(owner("ps0"), http=HERE) as one, Server(owner("ps1"), http=HERE) as other:
        assert one.http_address != other.http_address
        async with tc.connect(one.address) as ps:
            latch = await ps.create("tests.ps_service.service_models.Latch")
            for server, name, objects in ((one, "ps0", 1), (other, "ps1", 0)):
                async with http.get(f"http://{server.http_address}/metrics") as response:
                    text = await response.text()
                assert f'ps_owner_info{{owner="{name}",' in text
                assert f'ps_objects{{kind="other"}} {objects}.0' in text
            del latch  # an object without handles is gone


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/nothing", 404), ("POST", "/metrics", 405)])
async def test_there_is_nothing_else(http: aiohttp.ClientSession, method: str, path: str, status: int) -> None:
    async with (
        Server(owner(), http=HERE) as server,
        http.request(method, f"http://{server.http_address}{path}") as response,
    ):
        assert response.status == status


BAD = {
    "version": b"GET /metrics HTTP/9.9\r\n\r\n",
    "header": b"GET /metrics HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 20_000 + b"\r\n\r\n",
    "address": b"GET http://[ HTTP/1.1\r\nHost: x\r\n\r\n",
    "chunk": b"POST /metrics HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "length": b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
    "body": b"GET /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Encoding: gzip\r\n\r\nabcde",
    "accept": b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    b"Accept: application/openmetrics-text; version=new\r\n\r\n",
}


@pytest.mark.parametrize("raw", BAD.values(), ids=BAD)
async def test_a_bad_request_is_one_line_in_the_log(
    http: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture, raw: bytes
) -> None:
    async with Server(owner(), http=HERE) as server:
        reader, writer = await asyncio.open_connection(*server.http_address.split(":"))
        writer.write(raw)
        await asyncio.wait_for(reader.read(), 20)  # until the owner has closed the connection
        writer.close()
        (record,) = [each for each in caplog.records if each.levelno >= logging.WARNING]
        assert record.name.startswith("ps_service.monitoring.")
        assert record.exc_info is None
        assert "\n" not in record.getMessage()
        assert "request" in record.getMessage()
        assert (await health(http, server))[0] == 200


async def test_a_bad_request_that_comes_again_and_again_is_logged_less_and_less(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = WebLog()
    for _ in range(120):
        log.exception("Error handling request", "127.0.0.1", exc_info=BadHttpMessage("PRI * HTTP/2.0"))
    told = [each.getMessage() for each in caplog.records]
    assert [each.rpartition("(")[2] for each in told[1:]] == ["10 times)", "100 times)"]
    assert told[0].startswith("a bad HTTP request from 127.0.0.1: ") and "times" not in told[0]


async def test_an_error_of_the_owner_keeps_its_traceback(
    http: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    def fails() -> str:
        raise ZeroDivisionError

    web = Web(owner(), HERE, fails)
    await web.start()
    try:
        async with http.get(f"http://{web.address}/healthz") as response:
            assert response.status == 500
    finally:
        await web.stop()
    assert "ZeroDivisionError" in caplog.text


# From the beginning to the end


async def test_health_answers_before_the_owner_serves_and_until_it_has_drained(
    http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = owner()
    server = Server(engine, http=HERE)
    seen: list[tuple[int, str]] = []
    begin = Server._begin

    async def look() -> None:
        status, told = await health(http, server)
        seen.append((status, told["state"]))

    async def slow(self: Server) -> None:
        await look()
        await begin(self)

    monkeypatch.setattr(Server, "_begin", slow)
    assert (server.state, server.http_address) == ("starting", "")
    await server.start()
    await look()
    async with tc.connect(server.address) as ps:
        handle = await ps.create("tests.ps_service.service_models.Latch", name="latch")
        latch: Latch = engine.registry.named("latch").value
        running = handle.wait()
        await asyncio.to_thread(latch.begun.wait, 20)
        draining = asyncio.create_task(server.drain(20.0))
        while server.state == "serving":  # noqa: ASYNC110 - it is a matter of a few turns
            await asyncio.sleep(0)
        await look()
        async with http.get(f"http://{server.http_address}/metrics") as response:
            assert "ps_draining 1.0" in await response.text()
        latch.opened.set()
        assert await running == "through"
        await draining
    assert seen == [(503, "starting"), (200, "serving"), (503, "draining")]
    with pytest.raises(aiohttp.ClientConnectorError):
        await look()
    await server.stop()


async def test_a_connection_that_is_kept_does_not_hold_the_end_up() -> None:
    async with aiohttp.ClientSession() as keeping, asyncio.timeout(50):
        async with Server(owner(), http=HERE) as server:
            await health(keeping, server)
            silent = await asyncio.open_connection(*server.http_address.split(":"))
        assert await silent[0].read() == b""
        silent[1].close()


async def test_without_an_address_there_is_no_web() -> None:
    async with Server(owner()) as server:
        assert server.http_address == ""
        assert server.state == "serving"


# Where it listens


async def test_a_port_in_use_is_told_as_such_and_nothing_is_left_listening(http: aiohttp.ClientSession) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken = f"127.0.0.1:{listener.getsockname()[1]}"
        engine = owner()
        server = Server(engine, http=taken)
        with pytest.raises(OSError, match=rf"metrics \(--http\): cannot listen on {taken}: is another owner"):
            await server.start()
        await server.stop()


async def test_a_server_that_cannot_start_takes_its_web_down(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(_: Server) -> None:
        raise OSError("on purpose")

    server = Server(owner(), http=HERE)
    monkeypatch.setattr(Server, "_begin", fails)
    with pytest.raises(OSError, match="on purpose"):
        await server.start()
    with pytest.raises(OSError):
        await asyncio.open_connection(*server.http_address.split(":"))
    await server.stop()


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "10.0.0.1:9464", "example.org:9464"])
async def test_listening_beyond_loopback_needs_the_insecure_option(listen: str) -> None:
    engine = owner()
    with pytest.raises(ValueError, match=rf"^{listen.replace('[', '.').replace(']', '.')} can be reached from other"):
        Server(engine, http=listen)
    Server(engine, insecure=True, http=listen)
    engine.close()


async def test_the_web_server_can_listen_on_ipv6(http: aiohttp.ClientSession) -> None:
    async with Server(owner(), http="[::1]:0") as server:
        assert server.http_address.startswith("[::1]:")
        assert (await health(http, server))[0] == 200


# The command line


async def test_the_command_says_where_the_metrics_are(http: aiohttp.ClientSession, forking: Forking) -> None:
    command = ("ps_service", "serve", "--listen", HERE, "--http", HERE)
    async with aclosing(await forking.begin(*command)) as process:
        async with asyncio.timeout(60):
            first, second = [(await process.stdout.readline()).decode() for _ in range(2)]
        assert first.startswith("ps0 is serving on 127.0.0.1:")
        assert second.startswith("ps0 serves a page at http://127.0.0.1:")
        address = second.split()[-1]
        async with http.get(address) as response:
            assert "ps_owner_info" in await response.text()
        async with http.get(address.replace("/metrics", "/healthz")) as response:
            assert json.loads(await response.text())["state"] == "serving"
        process.send_signal(signal.SIGTERM)
        assert await process.stdout.read() == b""
        assert await process.wait() == 0
