"""Tests that metrics are right, follow the naming rules, and are all on their page."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
import torch
from prometheus_client import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.openmetrics import parser as openmetrics_parser
from prometheus_client.parser import text_string_to_metric_families

import trainer_client as tc
from ps_service.engine import Engine
from ps_service.hosting import creation
from ps_service.hosting.allowlist import AllowList
from ps_service.hosting.registry import Registry
from ps_service.metrics.object_counts import KINDS
from ps_service.monitoring import exporter
from ps_service.passes.staleness import MOST_NAMES
from ps_service.quotas.quota import QuotaFile
from ps_service.requests.execution import answer
from ps_service.requests.operations import OPERATIONS
from ps_service.server import Server
from ps_wire.limits import MIB, Limits
from ps_wire.v1 import owner_pb2_grpc
from ps_wire.v1.errors_pb2 import ErrorCode
from ps_wire.v1.frames_pb2 import Frame, Request
from ps_wire.v1.operations_pb2 import CallRequest, CreateRequest, DeleteRequest, StatusRequest
from tests import hosted_models
from tests.allowed import allowed
from tests.hosted_models import Gate
from tests.integration.support import HandMade
from tests.transports import TRANSPORTS, over_each
from tests.waiting import until
from trainer_client.transport.in_process import MemoryConnector

ROOT = Path(__file__).parent.parent.parent.parent
MODELS = "tests.hosted_models"
PROMTOOL = shutil.which("promtool")
Labels = dict[str, str]


@pytest.fixture
async def owner() -> AsyncIterator[Server]:
    engine = Engine("ps0", AllowList([hosted_models]), threads=2)
    async with Server(engine) as server:
        yield server


@pytest.fixture
async def ps(owner: Server) -> AsyncIterator[tc.Client]:
    async with tc.connect(owner.address) as client:
        yield client


class Told:
    """What an owner tells in one scrape."""

    def __init__(self, engine: Engine) -> None:
        text = generate_latest(exporter.registry(engine)).decode()
        self.families = {family.name: family for family in text_string_to_metric_families(text)}
        self.samples = [sample for family in self.families.values() for sample in family.samples]

    def __call__(self, name: str, **labels: str) -> float:
        """The one sample of that name and those labels, beside which it may have others."""
        (value,) = [each.value for each in self.samples if each.name == name and labels.items() <= each.labels.items()]
        return value

    def all(self, name: str, label: str) -> Labels:
        return {each.labels[label]: each.value for each in self.samples if each.name == name}


async def one_pass(ps: tc.Client, net: Any, opt: Any) -> None:
    async with ps.context() as ctx:
        await ctx.backward((await net(torch.ones(1, 3))).sum())
        await opt.step(ctx)


# The numbers


async def test_an_idle_owner_tells_every_series_that_is_known_beforehand() -> None:
    engine = Engine("ps7")
    told = Told(engine)
    assert told.all("ps_request_duration_seconds_count", "operation") == dict.fromkeys(OPERATIONS, 0)
    assert told.all("ps_request_errors_total", "operation") == dict.fromkeys(OPERATIONS, 0)
    codes = {name.removeprefix("ERROR_").lower() for name in dict(ErrorCode.items())} - {"unspecified"}
    assert told.all("ps_errors_total", "code") == dict.fromkeys(codes, 0)
    assert told.all("ps_objects", "kind") == dict.fromkeys(KINDS, 0)
    assert told.all("ps_optimizer_steps_total", "optimizer") == {"(others)": 0}
    assert told("ps_owner_info", owner="ps7", torch=str(torch.__version__)) == 1
    assert told("ps_draining") == told("ps_sessions", state="connected") == 0
    assert told("process_resident_memory_bytes") > MIB
    engine.close()


async def test_requests_are_told_by_operation(owner: Server, ps: tc.Client) -> None:
    net = await ps.module(f"{MODELS}.Affine", 3, 2, name="net")
    for _ in range(3):
        await net(torch.ones(1, 3))
    with pytest.raises(tc.errors.UnknownNameError):
        await ps.attach("nothing")
    counter = await ps.create(f"{MODELS}.Counter")
    with pytest.raises(tc.errors.RemoteError):
        await counter.fail("on purpose")
    told = Told(owner.engine)
    counts = told.all("ps_request_duration_seconds_count", "operation")
    assert {name: count for name, count in counts.items() if count} == {"create": 2, "attach": 1, "call": 4}
    assert 0 < told("ps_request_duration_seconds_sum", operation="call") < 60
    assert told("ps_request_duration_seconds_bucket", operation="call", le="+Inf") == 4
    errors = told.all("ps_request_errors_total", "operation")
    assert {name: count for name, count in errors.items() if count} == {"attach": 1, "call": 1}
    codes = told.all("ps_errors_total", "code")
    assert {name: count for name, count in codes.items() if count} == {"unknown_name": 1, "remote": 1}


async def test_requests_under_way_are_told() -> None:
    engine = Engine("ps0", AllowList([hosted_models]), limits=Limits(max_in_flight=3), threads=2)
    async with Server(engine) as owner, tc.connect(owner.address) as ps:
        gate = await ps.create(f"{MODELS}.Gate")
        wait = Request(call=CallRequest(target=gate.ref.to_message(), method="wait"))
        create = Request(create=CreateRequest(class_name=f"{MODELS}.Gate"))
        # A client of ours keeps to the limit.
        stream = await HandMade.greeted(MemoryConnector(owner.servicer.serve))
        await _are_told(engine, engine.registry.find(gate.ref).value, stream, wait, create)


async def _are_told(engine: Engine, hosted: Gate, stream: HandMade, wait: Request, create: Request) -> None:
    for number in (1, 2):
        await stream.send(Frame(number=number, request=wait))
    await asyncio.to_thread(hosted.wait_for, 2)
    try:
        await stream.send(Frame(number=3, request=create))  # both threads are taken
        await stream.send(Frame(number=4, request=wait))
        assert (await stream.receive()).reply.error.code == ErrorCode.ERROR_OVERLOADED
        began = time.perf_counter()
        told = Told(engine)
        assert (told("ps_requests_in_flight"), told("ps_compute_queue_length"), told("ps_compute_threads")) == (3, 1, 2)
        assert told("ps_errors_total", code="overloaded") == 1
        assert told("ps_request_errors_total", operation="call") == 0, "it was not taken up"
        queued = told("ps_request_queue_duration_seconds_sum")
        at_least = time.perf_counter() - began
    finally:
        hosted.open()
    assert {(await stream.receive()).number for _ in range(3)} == {1, 2, 3}
    told = Told(engine)
    assert (told("ps_requests_in_flight"), told("ps_compute_queue_length")) == (0, 0)
    assert told("ps_request_queue_duration_seconds_count") >= 3
    assert told("ps_request_queue_duration_seconds_sum") - queued >= at_least
    assert told("ps_request_duration_seconds_sum", operation="create") >= at_least, "waiting for a thread counts"


@over_each
async def test_bytes_are_told_by_transport(transport: str) -> None:
    engine = Engine("ps0", AllowList([hosted_models]))
    async with Server(engine, direct_port=0) as owner, tc.connect(owner.address, **TRANSPORTS[transport]) as ps:
        counter = await ps.create(f"{MODELS}.Counter")
        before = Told(owner.engine)
        await counter.echo(torch.ones(MIB // 4))
        after = Told(owner.engine)
        for name in ("ps_received_bytes_total", "ps_sent_bytes_total"):
            grown = {each: after(name, transport=each) - before(name, transport=each) for each in TRANSPORTS}
            assert MIB < grown.pop(transport) < MIB + 4096
            assert not any(grown.values())
        assert after("ps_direct_connections") == int(transport == "direct")
        assert (after("ps_shared_memory_connections"), after("ps_shared_memory_bytes") > 0) == (
            (1, True) if transport == "shared_memory" else (0, False)
        )


async def test_unary_methods_take_grpc(owner: Server) -> None:
    async with grpc.aio.insecure_channel(owner.address) as channel:
        reply = await owner_pb2_grpc.OwnerStub(channel).Status(StatusRequest())
    told = Told(owner.engine)
    assert told("ps_sent_bytes_total", transport="grpc") == reply.ByteSize() > 0
    assert told("ps_received_bytes_total", transport="grpc") == 0, "the request is empty"


async def test_requests_that_are_given_up_are_errors_of_their_own_kind(owner: Server) -> None:
    gate, _ = creation.create(owner.engine, f"{MODELS}.Gate", (), {})
    request = CallRequest(target=gate.ref.to_message(), method="wait")
    await answer(owner.engine, b"t" * 16, OPERATIONS["call"], request, timeout_seconds=0.01)
    entered = gate.value.inside  # 0 where the first request was late before its method began
    cancelled = asyncio.create_task(answer(owner.engine, b"t" * 16, OPERATIONS["call"], request))
    await asyncio.to_thread(gate.value.wait_for, entered + 1)
    cancelled.cancel()
    await cancelled
    gate.value.open()
    told = Told(owner.engine)
    codes = told.all("ps_errors_total", "code")
    assert {name: count for name, count in codes.items() if count} == {"deadline_exceeded": 1, "cancelled": 1}
    assert told("ps_request_errors_total", operation="call") == 2
    assert told("ps_request_duration_seconds_sum", operation="call") >= 0.01


async def test_sessions_and_their_bytes_are_exported(owner: Server) -> None:
    async with tc.connect(owner.address) as ps:
        async with tc.connect(owner.address) as other:
            kept = await ps.create(f"{MODELS}.Counter")
            net = await ps.module(f"{MODELS}.Affine", 3, 2, name="net")
            theirs = await other.module(f"{MODELS}.Affine", 3, 2, name="net")
            async with ps.context():
                await net(torch.ones(1, 3))
                told = Told(owner.engine)
                assert told.all("ps_sessions", "state") == {"connected": 2, "disconnected": 0}
                assert (told("ps_contexts"), told("ps_references")) == (1, 3)
                assert told.all("ps_objects", "kind")["module"] == told.all("ps_objects", "kind")["other"] == 1
                assert (told("ps_parameters"), told("ps_parameter_bytes")) == (8, 32)
                assert told("ps_kept_answers") == len(owner.engine.reply_cache) > 0
        for session in owner.engine.sessions.all():
            session.streams = 0
        assert Told(owner.engine)("ps_sessions", state="disconnected") == 1
        for session in owner.engine.sessions.all():
            session.streams = 1
        del kept, theirs
    await until(lambda: not len(owner.engine.sessions))  # the owner has read that both are gone
    told = Told(owner.engine)
    assert told.all("ps_sessions", "state") == {"connected": 0, "disconnected": 0}
    assert (told("ps_contexts"), told("ps_references"), told("ps_kept_answers")) == (0, 0, 0)


async def test_training_is_told_by_optimizer(owner: Server, ps: tc.Client) -> None:
    net = await ps.module(f"{MODELS}.Affine", 3, 2, name="net")
    opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1)
    for _ in range(3):
        await one_pass(ps, net, opt)
    owner.engine.registry.named("net.optimizer").value.version = 103  # as if it went on from a checkpoint
    await one_pass(ps, net, opt)
    told = Told(owner.engine)
    assert told.all("ps_optimizer_steps_total", "optimizer") == {"(others)": 0, "net.optimizer": 4}
    assert told.all("ps_optimizer_version", "optimizer") == {"net.optimizer": 104}
    assert told("ps_optimizer_staleness_steps_bucket", optimizer="net.optimizer", le="0.0") == 4
    await ps.delete("net")
    told = Told(owner.engine)
    assert told.all("ps_optimizer_steps_total", "optimizer")["net.optimizer"] == 4, "a counter does not go back"
    assert told.all("ps_optimizer_version", "optimizer") == {}


async def test_versions_go_on_after_a_restart_and_counters_begin_again(tmp_path: Path) -> None:
    for start in range(2):
        engine = Engine("ps0", AllowList([hosted_models]), data_dir=tmp_path)
        async with Server(engine) as owner:
            async with tc.connect(owner.address) as ps:
                net = await ps.module(f"{MODELS}.Affine", 3, 2, name="net")
                opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1)
                for _ in range(3):
                    await one_pass(ps, net, opt)
            told = Told(engine)
            assert told("ps_optimizer_version", optimizer="net.optimizer") == 3 * (start + 1)
            assert told("ps_optimizer_steps_total", optimizer="net.optimizer") == 3
            assert (told("ps_objects", kind="module"), told("ps_parameters")) == (1, 8)
            await owner.drain(20.0)


async def test_an_owner_that_drains_says_so(owner: Server) -> None:
    await owner.drain(0.0)
    await answer(owner.engine, b"t" * 16, OPERATIONS["delete"], DeleteRequest(name="net"))
    told = Told(owner.engine)
    assert (told("ps_draining"), told("ps_errors_total", code="unavailable")) == (1, 1)
    assert told("ps_request_errors_total", operation="delete") == 0, "it was not taken up"


# How much there is to tell


async def test_the_number_of_series_has_a_bound(owner: Server, ps: tc.Client) -> None:
    net = await ps.module(f"{MODELS}.Affine", 3, 2, name="net")
    for number in range(MOST_NAMES + 6):
        await ps.optimizer(torch.optim.SGD, net.parameters(), name=f"optimizer{number}", lr=0.1)
    told = Told(owner.engine)
    assert len(told.all("ps_optimizer_version", "optimizer")) == MOST_NAMES
    assert len(told.all("ps_optimizer_steps_total", "optimizer")) == MOST_NAMES + 1
    assert len(told.samples) < 2100, "docs/metrics.md says so"


async def test_a_scrape_does_not_look_at_every_object(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine("ps0")
    few = len(Told(engine).samples)
    for _ in range(200):
        creation.create(engine, "torch.nn.Linear", (2, 2), {})

    def objects(_: Registry) -> Iterable[Any]:
        raise AssertionError("it looks at all of them")

    monkeypatch.setattr(Registry, "objects", objects)
    told = Told(engine)
    assert (told("ps_objects", kind="module"), told("ps_parameters")) == (200, 1200)
    assert len(told.samples) == few
    engine.close()


# Names, units, documentation


class Documented(NamedTuple):
    """One row of the table."""

    type: str
    unit: str
    labels: frozenset[str]


def page() -> dict[str, Documented]:
    """The table of docs/metrics.md."""
    rows = {}
    for line in (ROOT / "docs" / "metrics.md").read_text("utf-8").splitlines():
        if re.match(r"\| `\w+` \| (counter|gauge|histogram) \|", line):
            name, type, unit, labels, meaning = (
                parameter_state.strip() for parameter_state in line.strip("|").split("|")
            )
            assert meaning, name
            rows[name.strip("`")] = Documented(type, unit, frozenset(re.findall(r"`(\w+)`", labels)))
    return rows


def documented(family: Metric) -> tuple[str, Documented]:
    """A family as the table should tell it."""
    own = {label for sample in family.samples for label in sample.labels}
    name = f"{family.name}_total" if family.type == "counter" else family.name
    (unit,) = [*(each for each in ("seconds", "bytes", "steps") if family.name.endswith(f"_{each}")), ""][:1]
    unit = "" if family.name == "ps_optimizer_steps" else unit
    return name, Documented(family.type, unit, frozenset(own - {"le"}))


async def test_the_page_lists_all_metrics_and_no_others(tmp_path: Path) -> None:
    quotas = tmp_path / "quotas.toml"
    quotas.write_text("all.sessions = 9")
    engine = Engine("ps0", allowed(hosted_models), quotas=QuotaFile(quotas))
    async with Server(engine) as owner, tc.connect(owner.address) as ps:
        net = await ps.module(f"{MODELS}.Affine", 3, 2, name="net")
        await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1)
        await ps.table("items", 4)
        told = dict(map(documented, Told(engine).families.values()))
    assert told == page()


async def test_names_units_and_types_are_by_the_book(owner: Server) -> None:
    for family in Told(owner.engine).families.values():
        assert family.documentation, family.name
        assert family.documentation.endswith(".") or not family.name.startswith("ps_"), family.name
        assert re.fullmatch(r"(ps|process|python)_[a-z_]+", family.name)
        assert family.type in ("counter", "gauge", "histogram")
        assert not re.search(r"milli|micro|minutes|hours|kilo|mega|percent|ratio$", family.name), "base units"
        if family.type == "histogram":
            assert family.name.endswith(("_seconds", "_steps"))
        for sample in family.samples:
            assert not set(sample.labels) & {"owner", "instance", "job"} or family.name == "ps_owner_info"
            if family.type == "counter":
                assert sample.name == f"{family.name}_total"
            if sample.name.endswith("_total"):
                assert family.type == "counter"


async def test_openmetrics_can_be_read_too(owner: Server, ps: tc.Client) -> None:
    await ps.module(f"{MODELS}.Affine", 3, 2, name="net")
    text = openmetrics.generate_latest(exporter.registry(owner.engine)).decode()
    # Strict: it refuses what the specification does, such as a unit that is not the end of the name.
    families = {family.name: family for family in openmetrics_parser.text_string_to_metric_families(text)}
    assert families["ps_request_duration_seconds"].unit == "seconds"
    assert families["ps_received_bytes"].unit == families["ps_parameter_bytes"].unit == "bytes"
    assert families["ps_optimizer_staleness_steps"].unit == "steps"
    assert families["ps_owner"].type == "info"
    plain = Told(owner.engine)
    assert {sample.name for family in families.values() for sample in family.samples} == {
        sample.name for sample in plain.samples
    }


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")
async def test_promtool_has_nothing_to_say(owner: Server, ps: tc.Client) -> None:
    net = await ps.module(f"{MODELS}.Affine", 3, 2, name="net")
    await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1)
    text = generate_latest(exporter.registry(owner.engine))
    command = [str(PROMTOOL), "check", "metrics"]
    done = await asyncio.to_thread(subprocess.run, command, input=text, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
