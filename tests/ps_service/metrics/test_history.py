"""Tests the samples that an owner keeps of its last minutes."""

from __future__ import annotations

import pytest

from ps_service.engine import Engine
from ps_service.metrics.history import KEPT_SAMPLES, History, Sample, buckets
from ps_service.monitoring.sampler import Sampler
from ps_service.requests.reporting import write_history
from ps_service.server import Server
from ps_wire.release import RELEASE
from ps_wire.v1.operations_pb2 import HistoryReply, HistoryRequest, OperationSample, StatusRequest
from ps_wire.v1.owner_pb2_grpc import OwnerStub
from tests.ps_service.clock import Clock
from trainer_client.transport.channels import open_channel


@pytest.fixture
def sampler(engine: Engine, clock: Clock) -> Sampler:
    return Sampler(engine, clock)


def numbers(samples: list[Sample]) -> list[int]:
    return [each.message.number for each in samples]


def test_a_sample_holds_what_came_since_the_one_before(engine: Engine, sampler: Sampler, clock: Clock) -> None:
    for staleness in (0, 0, 3, None):
        engine.counters.steps.of("opt").count(staleness)
    engine.counters.count("call", 0.0002)
    engine.counters.count("call", 0.0002, error=3)
    engine.counters.count("call", 100.0)
    engine.counters.traffic["direct"].received += 10
    engine.counters.traffic["grpc"].sent += 20
    clock.now += 1.25
    first = sampler.sample()
    assert engine.history.after(0) == [Sample(clock.now, first)]
    assert (first.number, first.seconds) == (1, 1.25)
    assert (first.steps, list(first.staleness)) == (4, [0, 2, 3, 1])
    assert list(first.operations) == [OperationSample(name="call", errors=1, durations=(1, 2, 18, 1))]
    assert (first.received_bytes, first.sent_bytes) == (10, 20)
    assert first.resident_bytes > 1 << 20
    engine.counters.count("push", 0.0002)
    clock.now += 1
    second = sampler.sample()
    assert (second.steps, list(second.staleness), second.received_bytes) == (0, [], 0)
    assert list(second.operations) == [OperationSample(name="push", errors=0, durations=(1, 1))]


def test_who_only_looks_is_not_part_of_it(engine: Engine, sampler: Sampler) -> None:
    for name in ("history", "status", "sessions"):
        engine.counters.count(name, 0.1)
    assert not sampler.sample().operations


def test_ten_minutes_are_kept(engine: Engine, sampler: Sampler) -> None:
    for _ in range(KEPT_SAMPLES + 5):
        sampler.sample()
    history = engine.history
    assert history.after(2**64 - 1) == history.after(2**62) == []
    assert len(history.after(0)) == KEPT_SAMPLES == 600
    assert numbers(history.after(0))[0] == 6
    assert numbers(history.after(0))[0] == 6
    assert numbers(history.after(602)) == [603, 604, 605]
    assert numbers(history.after(100, most=2)) == [101, 102]
    assert history.after(605) == history.after(1000) == []
    assert History().after(0) == []


def test_an_empty_histogram_has_no_buckets() -> None:
    assert buckets((1, 2), (1, 2)) == []
    assert buckets((1, 5, 2), (0, 5, 0)) == [0, 1, 2, 2]


def test_a_reply_has_a_hundred_samples_at_most(engine: Engine, sampler: Sampler) -> None:
    engine.counters.count("call", 0.0002)
    for _ in range(130):
        sampler.sample()
    seen: list[int] = []
    for expected in (100, 30, 0):
        reply = HistoryReply()
        write_history(engine, seen[-1] if seen else 0, reply)
        assert len(reply.samples) == expected
        seen += [each.number for each in reply.samples]
    assert seen == list(range(1, 131))
    assert (reply.owner, reply.incarnation, reply.version) == ("ps0", engine.incarnations.current, RELEASE)
    assert reply.state == "serving" and reply.max_owner_bytes == engine.limits.max_owner_bytes
    assert reply.memory_bytes > reply.max_context_bytes > 0


async def test_an_owner_samples_while_it_serves_and_tells_it_as_a_unary_method(owner: Server) -> None:
    sample = owner._sampler.sample()
    async with open_channel(owner.address) as channel:
        stub = OwnerStub(channel)
        await stub.Status(StatusRequest())
        reply = await stub.History(HistoryRequest(after=sample.number - 1))
    (told, *_) = reply.samples
    assert (told.number, told.resident_bytes) == (sample.number, sample.resident_bytes)
    assert 0 <= told.age_seconds < 60
    task = owner._sampler._task
    assert task is not None and not task.done()
    await owner.stop()
    assert task.cancelled()
