"""Tests the page of the group over HTTP: its HTML, its messages, and what keeps others away from it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import time
from collections.abc import AsyncIterator
from html.parser import HTMLParser
from importlib.resources import files
from typing import Any

import aiohttp
import pytest
import torch

import trainer_client as tc
from ps_service.engine import Engine
from ps_service.hosting.allowlist import AllowList
from ps_service.metrics.history import Sample
from ps_service.monitoring import page_feed
from ps_service.monitoring.page_feed import PageStream
from ps_service.monitoring.sampler import Sampler
from ps_service.monitoring.web import Web
from ps_service.server import Server
from ps_wire.errors import RemoteError
from ps_wire.status import OwnerStatus
from ps_wire.v1 import operations_pb2 as pb
from tests import hosted_models, waiting
from tests.cases import case

HERE = "127.0.0.1:0"
EVIL = "<script>alert(1)</script><img src=x onerror=alert(1)>&\"'"


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session:
        yield session


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with Server(Engine("ps0", AllowList([hosted_models])), http=HERE) as server:
        yield server


@pytest.fixture
async def sampled_by_hand(server: Server) -> Sampler:
    """Makes the samples of `server`, which makes none by itself: however long a test takes, there are no more."""
    await server._sampler.end()
    return server._sampler


async def text_of(http: aiohttp.ClientSession, server: Server, path: str = "/") -> str:
    async with http.get(f"http://{server.http_address}{path}") as response:
        assert response.status == 200, await response.text()
        return await response.text()


async def messages(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    """The server-sent events of a stream."""
    async for line in response.content:
        if line.startswith(b"data: "):
            yield json.loads(line.removeprefix(b"data: "))


async def until(stream: AsyncIterator[dict[str, Any]], field: str) -> dict[str, Any]:
    """The next message that has a field."""
    async with asyncio.timeout(50):
        async for message in stream:
            if field in message:
                return message
    raise AssertionError("the stream has ended")


class Elements(HTMLParser):
    """The elements of a page: their names, and the values of their attributes."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


# The HTML


async def test_the_html_shows_the_group_without_scripts(http: aiohttp.ClientSession, server: Server) -> None:
    async with tc.connect(server.address) as ps:
        net = await ps.module("torch.nn.Linear", 2, 1, name="net")
        await ps.optimizer("torch.optim.SGD", net.parameters(), lr=0.25, name="sgd")
        html = await text_of(http, server)
    assert server.address in html and "torch.optim.SGD" in html and "0.25" in html
    assert re.search(r'id="tile-trainers".*?<dd class="value">1</dd>', html)
    assert re.search(r'id="tile-owners".*?<dd class="value">1 of 1</dd>', html)
    assert "No table has been made yet." in html


async def test_what_trainers_choose_is_text(http: aiohttp.ClientSession, server: Server) -> None:
    async with tc.connect(server.address) as ps:
        net = await ps.module("torch.nn.Linear", 2, 1, name=EVIL)
        await ps.optimizer("torch.optim.SGD", net.parameters(), lr=0.1, name=f"{EVIL} too")
        counter = await ps.create("tests.hosted_models.Counter")
        with pytest.raises(RemoteError):
            await counter.fail(EVIL)
        html = await text_of(http, server)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html
    scripts = [attributes for tag, attributes in Elements(html).found if tag == "script"]
    assert all((each.get("src") or "").startswith("/static/") for each in scripts) and len(scripts) == 3
    assert not [tag for tag, _ in Elements(html).found if tag == "img"]
    assert EVIL not in html


async def test_nothing_comes_from_another_host_and_nothing_stands_inline(
    http: aiohttp.ClientSession, server: Server
) -> None:
    async with http.get(f"http://{server.http_address}/") as response:
        policy = response.headers["Content-Security-Policy"]
        html = await response.text()
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert response.headers["Cache-Control"] == "no-store"
    assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
    for tag, attributes in Elements(html).found:
        assert "style" not in attributes and not any(name.startswith("on") for name in attributes), tag
        for name in ("src", "href"):
            assert (attributes.get(name) or "/").startswith(("/", "#")) and not (attributes.get(name) or "").startswith(
                "//"
            )
    for path in re.findall(r'(?:src|href)="(/static/[^"]+)"', html):
        async with http.get(f"http://{server.http_address}{path}") as response:
            assert response.status == 200
            tag = response.headers["ETag"]
        async with http.get(f"http://{server.http_address}{path}", headers={"If-None-Match": tag}) as response:
            assert response.status == 304


def test_the_files_of_uplot_are_those_that_its_readme_names() -> None:
    folder = files("ps_service.monitoring").joinpath("page_files", "uplot")
    readme = folder.joinpath("README.md").read_text("utf-8")
    sums = re.findall(r"^([0-9a-f]{64})  (\S+)$", readme, re.MULTILINE)
    assert {name for _, name in sums} == {"uPlot.iife.min.js", "uPlot.min.css"}
    for sum, name in sums:
        assert hashlib.sha256(folder.joinpath(name).read_bytes()).hexdigest() == sum
    assert "1.6.32" in readme and "MIT" in folder.joinpath("LICENSE").read_text("utf-8")
    script = folder.joinpath("uPlot.iife.min.js").read_text("utf-8")
    assert "v1.6.32" in script[:200]


# Who may ask, and what


async def test_it_is_read_only(http: aiohttp.ClientSession, server: Server) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        for path in ("/", "/status.json", "/messages", "/static/page.js"):
            async with http.request(method, f"http://{server.http_address}{path}") as response:
                assert response.status == 405, f"{method} {path}"


async def test_only_the_files_of_the_page_are_served(http: aiohttp.ClientSession, server: Server) -> None:
    for path in ("/static/nothing.js", "/static/..%2f..%2fpage.py", "/static/page.html", "/static/"):
        async with http.get(f"http://{server.http_address}{path}") as response:
            assert response.status == 404, path


async def test_on_loopback_only_local_names_are_answered(http: aiohttp.ClientSession, server: Server) -> None:
    statuses = {
        **dict.fromkeys(("127.0.0.1:9464", "localhost", "localhost:1", "[::1]:9464"), 200),
        **dict.fromkeys(("evil.example", "127.0.0.1.evil.example:9464", ""), 403),
    }
    for host, status in statuses.items():
        with case(host):
            for path, expected in {"/": status, "/status.json": status, "/metrics": 200}.items():
                async with http.get(f"http://{server.http_address}{path}", headers={"Host": host}) as response:
                    assert response.status == expected


async def test_beyond_loopback_any_name_is_answered(http: aiohttp.ClientSession) -> None:
    async with Server(Engine("ps0"), http="0.0.0.0:0", insecure=True) as server:
        address = server.http_address.replace("0.0.0.0", "127.0.0.1")
        async with http.get(f"http://{address}/", headers={"Host": "ps0.cluster.local"}) as response:
            assert response.status == 200


# Whether it is ready


async def test_an_owner_is_ready_when_it_serves_and_is_in_its_group(http: aiohttp.ClientSession) -> None:
    engine, state = Engine("ps0"), [""]
    web = Web(engine, HERE, lambda: state[0])
    await web.start()
    try:
        found = []
        for state[0], awaited in (("starting", False), ("serving", True), ("serving", False), ("draining", False)):
            engine.membership.awaited = awaited
            async with http.get(f"http://{web.address}/readyz") as response:
                found.append((response.status, (await response.json())["ready"]))
        assert found == [(503, False), (503, False), (200, True), (503, False)]
    finally:
        await web.stop()
        engine.close()


# /status.json


async def test_status_json_has_the_numbers_of_the_group(http: aiohttp.ClientSession, server: Server) -> None:
    async with tc.connect(server.address) as ps:
        net = await ps.module("torch.nn.Linear", 2, 1, name="net")
        await ps.optimizer("torch.optim.SGD", net.parameters(), lr=float("inf"), name="sgd")
        server._sampler.sample()
        told = json.loads(await text_of(http, server, "/status.json"))
    assert told["totals"]["owners"] == told["totals"]["owners_answering"] == 1
    assert (told["totals"]["trainers_connected"], told["totals"]["trainers_slow"]) == (1, 0)
    (trainer,) = told["trainers"]
    assert (trainer["id"], trainer["owners"], trainer["slow"]) == (ps.trainer_name, ["ps0"], "")
    assert (trainer["connected"], trainer["steps"], trainer["steps_per_second"]) == (True, 0, 0.0)
    (owner,) = told["owners"]
    assert (owner["name"], owner["address"], owner["state"]) == ("ps0", server.address, "serving")
    assert owner["now"]["resident_bytes"] > 1 << 20
    assert {each["name"] for each in owner["operations"]} >= {"create", "optimizer"}
    assert {each["kind"] for each in owner["events"]} >= {"joined", "made"}
    assert set(owner["status"]) == set(OwnerStatus.__dataclass_fields__)
    assert owner["status"]["optimizers"][0]["lr"] == [None]  # JSON knows no infinity


async def test_a_trainer_that_has_left_is_part_of_the_totals(
    http: aiohttp.ClientSession, server: Server, sampled_by_hand: Sampler
) -> None:
    sampled_by_hand.sample()
    async with tc.connect(server.address) as ps:
        net = await ps.module("torch.nn.Linear", 2, 1, name="net")
        first = await ps.optimizer("torch.optim.SGD", [net.parameter("weight")], lr=0.1)
        second = await ps.optimizer("torch.optim.SGD", [net.parameter("bias")], lr=0.1)
        for _ in range(4):
            async with ps.context() as ctx:
                await ctx.backward((await net(torch.ones(1, 2))).sum(), step=[first, second])
    await waiting.until(lambda: not server.engine.sessions.all())
    sample = sampled_by_hand.sample()
    assert (sample.steps, sample.trainer_steps) == (8, 4)
    totals = json.loads(await text_of(http, server, "/status.json"))["totals"]
    assert totals["trainers_connected"] == 0
    assert totals["steps_per_second"] > 0


async def test_the_rows_of_tables_are_parameters(
    http: aiohttp.ClientSession, server: Server, sampled_by_hand: Sampler
) -> None:
    number = sampled_by_hand.sample().number
    more = pb.Sample(number=number + 1, seconds=1.0, parameter_bytes=1 << 20, table_bytes=1 << 18)
    server.engine.history.add(Sample(time.monotonic(), more))
    assert '<td class="num">1.2 MiB</td>' in await text_of(http, server)


# Messages


async def test_a_stream_begins_with_everything_and_goes_on_with_what_is_new(
    http: aiohttp.ClientSession, server: Server
) -> None:
    server._sampler.sample()
    async with http.get(f"http://{server.http_address}/messages") as response, asyncio.timeout(50):
        assert response.headers["Content-Type"].startswith("text/event-stream")
        stream = messages(response)
        first = await anext(stream)
        assert [each["name"] for each in first["owners"]] == ["ps0"]
        everything = await anext(stream)
        assert everything["samples"]["ps0"] and everything["events"]["ps0"] and everything["lists"]["ps0"]["memory"]
        last = everything["samples"]["ps0"][-1][0]
        assert (await anext(stream)) == {"complete": True}
        fresh = await until(stream, "samples")
        assert fresh["samples"]["ps0"][0][0] == last + 1
        async with tc.connect(server.address):
            pass
        kinds = {each["kind"] for each in (await until(stream, "events"))["events"]["ps0"]}
        assert kinds & {"joined", "left"}


async def test_too_many_pages_are_refused(
    http: aiohttp.ClientSession, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_feed, "MOST_STREAMS", 1)
    async with http.get(f"http://{server.http_address}/messages") as response:
        await anext(messages(response))
        async with http.get(f"http://{server.http_address}/messages") as refused:
            assert refused.status == 503
            assert "1 pages are open already" in await refused.text()


async def test_a_page_that_does_not_read_is_cut_off_and_the_others_go_on(
    http: aiohttp.ClientSession, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_feed, "MOST_WAITING_BYTES", 1 << 20)
    assert server._web is not None
    feed = server._web.page.feed
    reader, writer = await asyncio.open_connection(*server.http_address.split(":"), limit=1024)
    writer.write(b"GET /messages HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await reader.readline()
    async with http.get(f"http://{server.http_address}/messages") as response, asyncio.timeout(50):
        stream = messages(response)
        await until(stream, "complete")
        assert len(feed.streams) == 2
        reading = asyncio.create_task(until(stream, "last"))
        while len(feed.streams) == 2:
            feed.send(b'data: {"filler":"%s"}\n\n' % (b"x" * 100_000))
            await asyncio.sleep(0)
            await asyncio.sleep(0.001)
        feed.send(b'data: {"last":1}\n\n')
        await reading
    writer.close()


async def test_a_page_that_is_not_allowed_any_more_and_does_not_read_is_cut_off(
    http: aiohttp.ClientSession, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_feed, "SAMPLE_SECONDS", 0.01)
    assert server._web is not None
    feed = server._web.page.feed
    reader, writer = await asyncio.open_connection(*server.http_address.split(":"), limit=1024)
    writer.write(b"GET /messages HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await reader.readline()
    (stream,) = feed.streams
    feed.send(b"x" * (64 << 20))  # more than the buffers of the sockets take
    monkeypatch.setattr(stream, "is_allowed", lambda: False)
    async with asyncio.timeout(50):
        while feed.streams:  # noqa: ASYNC110 - nothing tells that a page has gone
            await asyncio.sleep(0.01)
    writer.close()


async def test_a_stream_counts_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_feed, "MOST_WAITING_BYTES", 10)
    cut: list[bool] = []
    stream = PageStream(lambda: cut.append(True), lambda: True)
    stream.send(b"x" * 100)  # alone, a message may be longer
    assert not cut
    stream.send(b"x")
    assert cut == [True]
    stream.send(b"x")
    assert cut == [True]


async def test_the_watch_ends_when_nobody_looks(http: aiohttp.ClientSession, server: Server) -> None:
    assert server._web is not None
    watch = server._web.page.watch
    watch.linger_seconds = 0.0
    assert not watch._tasks
    await text_of(http, server)
    async with asyncio.timeout(50):
        while watch._tasks:  # noqa: ASYNC110 - it looks at the clock every two seconds
            await asyncio.sleep(0.01)
    assert watch.owners == {}


async def test_an_open_page_does_not_hold_the_end_up(http: aiohttp.ClientSession) -> None:
    async with asyncio.timeout(50):
        async with Server(Engine("ps0"), http=HERE) as server:
            response = await http.get(f"http://{server.http_address}/messages")
            await anext(messages(response))
        async for _ in messages(response):
            pass
