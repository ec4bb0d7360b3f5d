"""Tests of traces by the SDK of OpenTelemetry: from a trainer's pass to what its owners do, in real processes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import aclosing
from typing import Any, NamedTuple

import pytest
import torch
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import trainer_client as tc
from ps_service.server import Server
from ps_wire import tracing
from ps_wire.tracing.spans import Tracing
from tests.conftest import OwnerProcess, StartProcess
from tests.integration.support import COUNTER
from tests.waiting import until

DELEGATING = "tests.hosted_models.Delegating"


class Node(NamedTuple):
    """A span, wherever it was recorded.

    Attributes:
        name: Its name.
        id: Its id.
        parent: That of its parent; empty for none.
        trace: Id of its trace.
        kind: Such as CLIENT.
        status: OK, ERROR or UNSET, and the text of an error.
        attributes: Its attributes.
    """

    name: str
    id: str
    parent: str
    trace: str
    kind: str
    status: tuple[str, str]
    attributes: dict[str, Any]


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """What this process records as a trainer."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    made = Tracing(provider)
    monkeypatch.setattr(tracing, "of_program", lambda name="": made)
    return exporter


@pytest.fixture
def traced_owners(monkeypatch: pytest.MonkeyPatch, start_process: StartProcess) -> Any:
    """Starts two owners of one group that write their spans to their standard output."""

    async def start() -> tuple[OwnerProcess, OwnerProcess]:
        with monkeypatch.context() as variables:
            variables.setenv("OTEL_TRACES_EXPORTER", "console")
            first = await start_process("--name", "ps0", "--directory", "self")
            second = await start_process("--name", "ps1", "--directory", first.address)
        return first, second

    return start


async def test_a_pass_is_one_trace_on_all_owners(recorded: InMemorySpanExporter, traced_owners: Any) -> None:
    first, second = await traced_owners()
    async with tc.connect(first.address, second.address) as ps:
        inner = await ps.module("torch.nn.Linear", 3, 3, owner="ps1", seed=0)
        outer = await ps.module(DELEGATING, owner="ps0")
        opt = await ps.optimizer(torch.optim.SGD, [*outer.parameters(), *inner.parameters()], lr=0.1)
        async with ps.context() as ctx:
            loss = (await outer(torch.rand(2, 3), inner)).sum()
            await ctx.backward(loss)
            await ctx.clip_grad_norm(list(inner.parameters()), 1.0)
            await opt.step(ctx)
        of_inner = await ps.optimizer(torch.optim.SGD, inner.parameters(), lr=0.1)
        async with ps.context() as ctx:
            loss = (await inner(torch.rand(2, 3))).sum()
            await ctx.backward(loss, step=of_inner)
    here = [of_sdk(span) for span in recorded.get_finished_spans()]
    of_ps1 = await written(second)
    of_ps0 = await written(first)
    one, other = (span for span in here if span.name == "pass")
    spans = {span.id: span for span in (*here, *of_ps0, *of_ps1)}
    trace = [span for span in spans.values() if span.trace == one.trace]
    names = {(span.name, *(above.name for above in lineage(span, spans))) for span in trace}
    forward = (f"{DELEGATING}.forward", f"{DELEGATING}.forward", "pass")
    assert forward in names
    assert ("torch.nn.Linear.forward", "forward", *forward) in names  # a nested call, on ps1
    assert ("backward", "backward", "pass") in names
    assert ("backward", "backward", "backward", "backward", "pass") in names
    assert ("norm", "norm", "pass") in names  # made by a task of the client
    assert ("step", "step", "pass") in names
    assert {span.attributes.get("ps.owner") for span in trace if span.kind == "SERVER"} == {"ps0", "ps1"}
    assert {span.status[0] for span in trace} == {"UNSET"}
    # A backward with a step behind it is one request.
    behind = {(s.name, *(a.name for a in lineage(s, spans))) for s in spans.values() if s.trace == other.trace}
    assert ("step", "backward", "backward", "pass") in behind


async def test_errors_are_the_status_of_spans(recorded: InMemorySpanExporter, owner: Server) -> None:
    async with tc.connect(owner.address) as ps:
        counter = await ps.create(COUNTER)
        with pytest.raises(tc.errors.RemoteError):
            async with ps.context():
                await counter.fail("expected " + "x" * 5000)
    failed = await errors(recorded, 3)
    assert sorted(span.name for span in failed) == ["pass", *[f"{COUNTER}.fail"] * 2]
    for span in failed:
        assert "expected" in span.status[1] and len(span.status[1]) <= 1024
        assert "Error" in span.attributes["error.type"]


async def test_a_cancelled_call_ends_its_spans(recorded: InMemorySpanExporter, owner: Server) -> None:
    async with tc.connect(owner.address) as ps:
        gate = await ps.create("tests.hosted_models.Gate")
        hosted, seconds = owner.engine.registry.find(gate.ref).value, 0.05
        while hosted.inside == 0:  # its time ends on the way
            recorded.clear()
            with pytest.raises(tc.errors.DeadlineExceededError):
                await gate.options(timeout=seconds).wait()
            seconds *= 2
        await gate.open()
    here, served = sorted(await errors(recorded, 2), key=lambda span: span.kind)
    assert (here.kind, served.kind) == ("CLIENT", "SERVER")
    assert here.name == served.name == "tests.hosted_models.Gate.wait"
    assert served.parent == here.id


async def errors(recorded: InMemorySpanExporter, count: int) -> list[Node]:
    """The spans of errors, when there are as many: an owner ends its span after the answer has gone."""

    def found() -> list[Node]:
        return [span for span in map(of_sdk, recorded.get_finished_spans()) if span.status[0] == "ERROR"]

    await until(lambda: len(found()) >= count)
    return found()


async def written(owner: OwnerProcess) -> list[Node]:
    """Ends an owner, and returns the spans that it has written."""
    owner.process.terminate()
    out = await owner.process.stdout.read()
    assert await owner.process.wait() == 0
    return [of_console(each) for each in objects(out.decode())]


def objects(text: str) -> Iterator[dict[str, Any]]:
    """The JSON objects in a text, one after the other."""
    decoder, position = json.JSONDecoder(), text.find("{")
    while position >= 0:
        found, end = decoder.raw_decode(text, position)
        yield found
        position = text.find("{", end)


def lineage(span: Node, spans: dict[str, Node]) -> Iterator[Node]:
    """The spans above one, from the nearest."""
    while span.parent:
        span = spans[span.parent]
        yield span


def of_sdk(span: ReadableSpan) -> Node:
    return of_console(json.loads(span.to_json()))


def of_console(span: dict[str, Any]) -> Node:
    status = span["status"]
    return Node(
        span["name"],
        span["context"]["span_id"],
        span["parent_id"] or "",
        span["context"]["trace_id"],
        span["kind"].removeprefix("SpanKind."),
        (status["status_code"], status.get("description", "")),
        span["attributes"],
    )


async def test_what_is_looked_up_in_advance_is_part_of_the_trace_of_its_pass(
    recorded: InMemorySpanExporter, owner: Server
) -> None:
    batches = [torch.tensor([number]) for number in range(4)]
    async with tc.connect(owner.address) as ps:
        items = await ps.table("items", 2)
        passes = []
        async with aclosing(ps.prefetch(batches, items, depth=1)) as prefetched:
            async for _, looked_up in prefetched:
                async with looked_up.context as ctx:
                    await ctx.backward((await looked_up).sum(), step=items.optimizer)
                passes.append(str(looked_up.context.id))
                if len(passes) == 3:
                    break
    spans = [of_sdk(span) for span in recorded.get_finished_spans()]
    found = {span.id: span.attributes["ps.context"] for span in spans if span.name == "pass"}
    # That of the last one ended with the loop, and had no backward.
    assert [each for each in found.values() if each in passes] == passes and len(found) == 4
    asked = [span for span in spans if span.kind == "CLIENT"]
    look_ups = [found[span.parent] for span in asked if span.name.endswith(".look_up")]
    backwards = [found[span.parent] for span in asked if span.name == "backward"]
    assert sorted(look_ups) == sorted(found.values()) and sorted(backwards) == sorted(passes)
