"""Tests the values of trainers over HTTP: /values.json, /values.csv, the messages of the page, and its HTML."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import torch

import trainer_client as tc
from ps_service.engine import Engine
from ps_service.measures.curve import MOST_POINTS
from ps_service.monitoring.watched_owner import WatchedOwner
from ps_service.requests.reporting import write_curves
from ps_service.server import Server
from ps_wire.v1.operations_pb2 import HistoryReply, HistoryRequest
from tests.integration.access.identities import Identities
from tests.ps_service.monitoring.curves import of
from tests.ps_service.monitoring.test_page import messages, text_of, until
from trainer_client.rpc.current import set_agent
from trainer_client.rpc.joining import join
from trainer_client.session.settings import Settings
from trainer_client.transport.channels import UnaryRequests

HERE = "127.0.0.1:0"
X = torch.ones(1, 2)


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session:
        yield session


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with Server(Engine("ps0"), http=HERE) as server:
        yield server


async def test_what_every_kind_of_step_reports_is_told(http: aiohttp.ClientSession, server: Server) -> None:
    async with tc.connect(server.address) as ps:
        net = await ps.module("torch.nn.Linear", 2, 1, name="net")
        opt = await ps.optimizer("torch.optim.SGD", net.parameters(), lr=0.0, name="sgd")
        async with ps.context() as ctx:
            await ctx.backward((await net(X)).sum())
            await opt.step(ctx, values={"loss": 4.0})
        async with ps.context() as ctx:
            await ctx.backward((await net(X)).sum(), step=opt, values={"loss": torch.tensor(2.0)})
        replica = await net.replica()
        replica(X).sum().backward()
        await replica.push(opt, values={"loss": math.nan, "samples": 8}, reduce={"samples": "sum"})
        await opt.set_policy(tc.policies.Sync(1))
        replica(X).sum().backward()
        await replica.push(opt, values={"loss": 1.0, "host": "a"}, reduce={"host": "keep"})
    told = json.loads(await text_of(http, server, "/values.json"))
    assert told["left_out"] == {}
    loss, samples = told["values"]
    points = loss.pop("points")
    about = {"owner": "ps0", "optimizer": "sgd", "class_name": "torch.optim.SGD", "ended": False}
    assert loss == {**about, "value": "loss", "reported": 4}
    assert [each["first_version"] for each in points] == [each["last_version"] for each in points] == [1, 2, 3, 4]
    assert [each["mean"] for each in points] == [each["max"] for each in points] == [4.0, 2.0, None, 1.0]
    assert [(each["count"], each["not_finite"]) for each in points] == [(1, 0), (1, 0), (0, 1), (1, 0)]
    times = [each["time_seconds"] for each in points]
    assert times == sorted(times) and abs(told["time_seconds"] - times[-1]) < 60
    assert samples["points"][0]["mean"] == 8.0
    lines = list(csv.DictReader(io.StringIO(await text_of(http, server, "/values.csv"))))
    assert [(each["optimizer"], each["value"], each["first_version"], each["mean"]) for each in lines] == [
        ("sgd", "loss", "1", "4.0"),
        ("sgd", "loss", "2", "2.0"),
        ("sgd", "loss", "3", ""),
        ("sgd", "loss", "4", "1.0"),
        ("sgd", "samples", "3", "8.0"),
    ]
    assert {(each["owner"], each["last_version"], each["min"]) for each in lines[:1]} == {("ps0", "1", "4.0")}
    html = await text_of(http, server)
    assert '<th scope="row">loss</th><td>sgd</td><td>ps0</td><td class="num">1</td>' in html


async def test_a_round_of_several_trainers_is_one_value(http: aiohttp.ClientSession, server: Server) -> None:
    async with tc.connect(server.address) as ps:
        net = await ps.module("torch.nn.Linear", 2, 1, name="net")
        opt = await ps.optimizer("torch.optim.SGD", net.parameters(), lr=0.0, name="sgd", policy=tc.policies.Quorum(2))
        for loss in (1.0, 2.0):
            async with ps.context() as ctx:
                await ctx.backward((await net(X)).sum())
                await opt.step(ctx, values={"loss": loss})
    (loss,) = json.loads(await text_of(http, server, "/values.json"))["values"]
    assert [(each["last_version"], each["mean"], each["count"]) for each in loss["points"]] == [(1, 1.5, 1)]


async def test_a_curve_outlives_its_optimizer(http: aiohttp.ClientSession, server: Server) -> None:
    async with tc.connect(server.address) as ps:
        net = await ps.module("torch.nn.Linear", 2, 1)
        opt = await ps.optimizer("torch.optim.SGD", net.parameters(), lr=0.0)
        async with ps.context() as ctx:
            await ctx.backward((await net(X)).sum(), step=opt, values={"loss": 1.0})
    async with http.get(f"http://{server.http_address}/messages") as response:
        stream = messages(response)
        while True:
            told = (await until(stream, "curves"))["curves"]["ps0"]
            if told["ended"]:
                break
    assert told["ended"] == told["numbers"]
    assert "(anonymous SGD) (gone)" in await text_of(http, server)


async def test_a_page_is_told_what_is_new(http: aiohttp.ClientSession, server: Server) -> None:
    curves = of(server.engine.curves, "sgd")
    for version in range(1, MOST_POINTS + 1):
        curves.add(version, {"loss": 1.0})
    async with http.get(f"http://{server.http_address}/messages") as response:
        stream = messages(response)
        ((number, optimizer, title, name, seen, start, points),) = (await until(stream, "curves"))["curves"]["ps0"][
            "fresh"
        ]
        assert (optimizer, title, name, seen, start, len(points)) == ("sgd", "sgd", "loss", MOST_POINTS, 0, MOST_POINTS)
        assert points[0][:7] == [1, 1, 1, 0, 1.0, 1.0, 1.0]
        await until(stream, "complete")
        curves.add(MOST_POINTS + 1, {"loss": math.inf})
        (fresh,) = (await until(stream, "curves"))["curves"]["ps0"]["fresh"]
        assert (fresh[0], fresh[4], fresh[5], len(fresh[6])) == (number, MOST_POINTS + 1, 0, MOST_POINTS // 2 + 1)
        assert fresh[6][-1][2:7] == [0, 1, None, None, None]
        curves.add(MOST_POINTS + 2, {"loss": 3.0})
        (fresh,) = (await until(stream, "curves"))["curves"]["ps0"]["fresh"]
        assert (fresh[5], len(fresh[6]), fresh[6][0][2:7]) == (MOST_POINTS // 2, 1, [1, 1, 3.0, 3.0, 3.0])


async def test_names_are_no_formulas_in_a_file(http: aiohttp.ClientSession, server: Server) -> None:
    of(server.engine.curves, '=1+1"\n,').add(1, {"@loss": 1.0, "-x": -1.0})
    async with http.get(f"http://{server.http_address}/values.csv") as response:
        assert response.headers["Content-Disposition"] == 'attachment; filename="values.csv"'
        assert response.headers["Content-Type"].startswith("text/csv")
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        rows = list(csv.reader(io.StringIO(await response.text())))
    assert [row[1:3] for row in rows[1:]] == [["'=1+1\"\n,", "'@loss"], ["'=1+1\"\n,", "'-x"]]
    assert rows[2][5] == "-1.0"


async def test_who_may_read_the_page_may_read_the_values(http: aiohttp.ClientSession, tmp_path: Path) -> None:
    identities = Identities(tmp_path)
    identities.add("other", namespaces=(("team", ("reader",)),))
    async with identities.serving(http=HERE) as server:
        of(server.engine.curves, "sgd").add(1, {"loss": 1.0})
        for path in ("/", "/values.json", "/values.csv"):
            for name, status in (("reader", 200), ("other", 403), ("", 401)):
                headers = {"Authorization": f"Bearer {identities.tokens[name]}"} if name else {}
                async with http.get(f"http://{server.http_address}{path}", headers=headers) as response:
                    assert response.status == status, (path, name)


async def test_an_identity_of_a_namespace_is_told_of_its_own_curves(tmp_path: Path) -> None:
    identities = Identities(tmp_path)
    token = identities.add("other", namespaces=(("team", ("reader",)),))
    async with identities.serving() as server:
        for name in ("sgd", "team::sgd", ""):
            of(server.engine.curves, name).add(1, {"loss": 1.0})
        found = []
        for namespace, own in (("team", token), ("", identities.tokens["reader"]), ("", identities.tokens["admin"])):
            unary = UnaryRequests(token=own, namespace=namespace)
            reply = await unary.ask(server.address, "History", HistoryRequest(with_curves=True), 20.0)
            found.append([each.optimizer for each in reply.curves])
            assert len(reply.curve_numbers) == len(reply.curves)
            assert not (await unary.ask(server.address, "History", HistoryRequest(), 20.0)).curve_numbers
            await unary.close()
        assert found == [["team::sgd"], ["sgd"], ["sgd", "team::sgd", ""]]


async def test_curves_of_all_owners_of_a_group_are_told(http: aiohttp.ClientSession) -> None:
    first, second = Server(Engine("ps0")), Server(Engine("ps1"), http=HERE)
    members = []
    try:
        for server in (first, second):
            await server.start()
            members.append(await join(server, Settings(), first.address if server is second else ""))
        for server in (first, second):
            of(server.engine.curves, "sgd").add(1, {server.engine.name: 1.0})
        # The first that anybody wants to know.
        rows = csv.DictReader(io.StringIO(await text_of(http, second, "/values.csv")))
        assert {row["owner"] for row in rows} == {"ps0", "ps1"}
        async with http.get(f"http://{second.http_address}/messages") as response:
            stream, found = messages(response), set[str]()
            while found < {"ps0", "ps1"}:
                found |= (await until(stream, "curves"))["curves"].keys()
        told = json.loads(await text_of(http, second, "/values.json"))
        assert [(each["owner"], each["value"]) for each in told["values"]] == [("ps1", "ps1"), ("ps0", "ps0")]
    finally:
        for member in reversed(members):
            await member.leave(0.0)
        set_agent(None)


def test_a_watched_owner_forgets_curves_that_have_gone_and_those_of_an_earlier_start() -> None:
    engine = Engine("ps1")
    try:
        owner = WatchedOwner("ps1", "127.0.0.1:1")
        one, other = of(engine.curves, "one"), of(engine.curves, "other")
        for version in range(1, 1000):
            one.add(version, {"loss": float(version)})
            other.add(version, {"loss": 0.5})
            if version % 37 == 0:
                owner.heard(_told(engine, owner))
        owner.heard(_told(engine, owner))
        assert [each.seen for each in owner.curves.values()] == [999, 999]
        (loss, _) = [list(each.rows()) for each in owner.curves.values()]
        assert sum(each["finite"] for each in loss) == 999
        assert [each["first_version"] for each in loss] == list(range(1, 1000, 4))
        engine.curves._of.remove(other)
        owner.heard(_told(engine, owner))
        assert [each.optimizer for each in owner.curves.values()] == ["one"]
        owner.heard(HistoryReply(incarnation="another"))
        assert owner.curves == {}
    finally:
        engine.close()


def _told(engine: Engine, owner: WatchedOwner) -> HistoryReply:
    reply = HistoryReply(incarnation="first", state="serving")
    write_curves(engine, owner.seen(), reply)
    return reply
