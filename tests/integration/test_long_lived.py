"""Long-lived: an owner tells its health, drains when told to end, and does not grow while trainers come and go."""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import os
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
import torch
from grpc_health.v1 import health_pb2, health_pb2_grpc

import trainer_client as tc
from ps_service.engine import Engine
from ps_service.measures.events import MOST_EVENTS
from ps_service.monitoring.sampler import Sampler
from ps_service.rpc import listener
from ps_wire.connections.connection import Connector
from ps_wire.limits import Limits
from ps_wire.shared_memory import peers
from ps_wire.status import OwnerStatus
from tests.conftest import OwnerProcess, StartProcess
from tests.integration.support import COUNTER, GATE, MODELS, Cuttable, in_memory, serving, until
from tests.waiting import SECONDS
from trainer_client.transport.grpc_stream import GrpcConnector

SERVICE = "ps_wire.v1.Owner"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
BLOCKS = "blocks of memory"
PASSING = {"TimerHandle", "Context", "hamt", "hamt_bitmap_node", "hamt_array_node"}


async def test_health_answers_for_the_server_and_for_the_service() -> None:
    async with serving() as owner, grpc.aio.insecure_channel(owner.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for name in ("", SERVICE):
            assert (await health.Check(health_pb2.HealthCheckRequest(service=name))).status == SERVING
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await health.Check(health_pb2.HealthCheckRequest(service="no.such.Service"))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_sigterm_lets_work_in_flight_end_and_takes_no_other(start_process: StartProcess, tmp_path: Path) -> None:
    owner: OwnerProcess = await start_process("--name", "ps0", "--import", MODELS)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    async with tc.connect(owner.address) as ps, grpc.aio.insecure_channel(owner.address) as channel:
        counter, reader = await ps.create(COUNTER, name="counter"), await ps.create(f"{MODELS}.PipeReader", str(pipe))
        reading = reader.wait()
        # Opening a pipe for writing waits until a process reads from it.
        writing = await asyncio.to_thread(os.open, pipe, os.O_WRONLY)
        watches = [_watch(channel, name) for name in ("", SERVICE)]
        assert [await watch.read() for watch in watches] == [health_pb2.HealthCheckResponse(status=SERVING)] * 2

        owner.process.send_signal(signal.SIGTERM)
        assert [(await watch.read()).status for watch in watches] == [NOT_SERVING] * 2
        for work in (counter.add(), ps.create(COUNTER), ps.module(torch.nn.Linear, 1, 1, name="late")):
            with pytest.raises(tc.errors.UnavailableError, match="'ps0' is shutting down and takes no new work"):
                await work
        with pytest.raises(tc.errors.UnavailableError, match="is shutting down"):
            await tc.connect(owner.address, connect_timeout=0.0)
        # What changes nothing is still answered.
        status = await ps.status()
        assert not status.serving and [each.name for each in status.objects if each.name] == ["counter"]
        assert not reading.done() and owner.process.returncode is None

        os.write(writing, b"through")
        os.close(writing)
        assert await reading == "through"
        assert await owner.process.wait() == 0
        with pytest.raises(tc.errors.UnavailableError):
            await (await tc.connect(owner.address, connect_timeout=0.0)).status()


async def test_hosted_code_that_never_returns_does_not_keep_the_process(start_process: StartProcess) -> None:
    owner: OwnerProcess = await start_process("--name", "ps0", "--drain-seconds", "0.1")
    async with tc.connect(owner.address, reconnect_timeout=0.0) as ps:
        gate = await ps.create(GATE)
        waiting = gate.wait()
        await gate.wait_for(1)
        owner.process.send_signal(signal.SIGTERM)
        with pytest.raises(tc.PsError):
            await waiting
        assert await owner.process.wait() == 0


def _watch(channel: grpc.aio.Channel, service: str) -> grpc.aio.UnaryStreamCall:
    return health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=service))


async def test_an_answer_that_was_being_sent_when_the_owner_was_told_to_end_arrives() -> None:
    async with serving() as owner, tc.connect(owner.address) as ps:
        counter = await ps.create(COUNTER)
        large = counter.echo(torch.arange(2 << 20))
        await until(ps, lambda status: status.requests_in_flight == 1 or large.done())
        await owner.drain(20)
        assert torch.equal(await large, torch.arange(2 << 20))


async def test_draining_does_not_wait_for_ever() -> None:
    async with serving(threads=4) as owner, tc.connect(owner.address, reconnect_timeout=0.0) as ps:
        gate = await ps.create(GATE, name="gate")
        waiting = gate.wait()
        await gate.wait_for(1)
        draining = asyncio.create_task(owner.drain(0.05))
        with pytest.raises((tc.errors.UnavailableError, tc.errors.CancelledCallError)):
            await waiting
        # Threads cannot be cut off: the owner's own end waits for the last of them.
        owner.engine.registry.named("gate").value.open()
        await draining


async def visit(connector: Connector, vanish: bool) -> None:
    """A short session: a pass through an anonymous and a named module and a step on both, then goodbye, or not."""
    line = Cuttable(connector)
    ps = await tc.connect(line, reconnect_timeout=0.0)
    named = await ps.module("torch.nn.Linear", 4, 4, name="net", seed=0)
    mine = await ps.module("torch.nn.Linear", 64, 4)
    shared = await ps.optimizer(torch.optim.Adam, named.parameters(), lr=1e-3)
    own = await ps.optimizer(torch.optim.Adam, [*mine.parameters(), named.parameter("bias")], lr=1e-3)
    async with ps.context() as ctx:
        await ctx.backward((await named(await mine(torch.ones(8, 64)))).square().sum())
        await asyncio.gather(shared.step(ctx), own.step(ctx))
        if vanish:
            await line.cut()
    await ps.close()


@dataclass
class Visitors:
    """Comes to an owner again and again, by ways that `connector` makes, and watches what stays behind."""

    engine: Engine
    connector: Callable[[], Connector]
    watch: tc.Client
    sweep: Callable[[], None]
    visits: int = 0
    looks: int = 0

    async def come(self, times: int, at_once: int = 8) -> None:
        """Some side by side; every other one vanishes. Returns when their sessions have ended, and nothing looks any
        more after their connections: what goes later would hide that other objects of its types have come."""
        for begun in range(0, times, at_once):
            numbers = range(min(at_once, times - begun))
            await asyncio.gather(*(visit(self.connector(), vanish=bool(number % 2)) for number in numbers))
        self.visits += times

        def gone(status: OwnerStatus) -> bool:
            self.sweep()
            return status.sessions == 1 and _looks() <= self.looks

        await until(self.watch, gone)

    async def nothing_grew(self, warm_up: int, times: int) -> None:
        """Whatever there is after `warm_up` visits, there is no more of it after `times` others."""
        await self.watch.status()
        # Those of the owner and of `watch`, and what earlier tests have left.
        self.looks = _looks()
        # The latest events are kept, up to that many: here they are as many before as after.
        for _ in range(MOST_EVENTS):
            self.engine.events.note("joined", "a trainer has connected")
        await self.come(warm_up)
        found = [_tracked()]
        # In portions as large as the first: sessions that vanished stay until their lease is over.
        for _ in range(times // warm_up):
            await self.come(warm_up)
            found.append(_tracked())
        # Connections that have ended stay a while, on a busy machine more of them.
        deadline = time.monotonic() + SECONDS
        while _grown(found, warm_up) and time.monotonic() < deadline:
            await self.watch.status()
            found[-1] = _tracked()
        status = await until(self.watch, lambda status: status.kept_answers == 0)
        assert [each.name for each in status.objects] == ["net"]
        assert [(each.name, each.version) for each in status.optimizers] == [("net.optimizer", self.visits)]
        assert (status.contexts, status.sessions, status.connected_sessions) == (0, 1, 1)
        assert len(self.engine.registry) == 2 and len(self.engine.reply_cache) == 0
        assert _grown(found, warm_up) == []


def _grown(found: list[Counter[str]], visits: int) -> list[str]:
    """The types of which each portion of so many visits has left more.

    Of a type that stays for every other visit, each portion would leave half as many more as it has visits. What is
    kept a while, up to some number, is now and then more by that many, but not after each of them.
    """
    grown = [after - before for before, after in itertools.pairwise(found)]
    # A visit makes thousands of blocks of memory, and other work of the process a few.
    most = defaultdict(lambda: visits / 3, {BLOCKS: 30.0 * visits})
    return [name for name in grown[0] if min(each[name] for each in grown) > most[name]]


def _looks() -> int:
    """How many times processes at the other ends of connections are looked after."""
    gc.collect()
    return sum(type(each) is peers.PeerWatch for each in gc.get_objects())


def _tracked() -> Counter[str]:
    """Objects there are, by type, without cancelled timers, which the loop keeps a while; and all blocks of memory.

    Strings and numbers are only among the blocks.
    """
    gc.collect()
    blocks = sys.getallocatedblocks()
    names = (type(each).__qualname__ for each in gc.get_objects())
    return Counter(name for name in names if name not in PASSING) + Counter({BLOCKS: blocks})


@pytest.fixture
def no_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps owners from adding what they measure to their history, each second."""
    monkeypatch.setattr(Sampler, "begin", lambda self: None)


@pytest.fixture
def no_records(caplog: pytest.LogCaptureFixture) -> None:
    """Keeps pytest from collecting what is logged of each session."""
    caplog.set_level(logging.CRITICAL)


@pytest.mark.usefixtures("no_samples", "no_records")
async def test_short_sessions_leave_nothing_behind() -> None:
    async with in_memory(Limits(lease_seconds=0.0)) as owner, tc.connect(owner.connector()) as watch:
        sweep = owner.servicer.session_handlers.sweep
        await Visitors(owner.engine, owner.connector, watch, sweep).nothing_grew(24, 72)


@pytest.mark.usefixtures("no_samples", "no_records")
async def test_short_sessions_over_grpc_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    # Tokens of faster connections that are not taken are known until they expire.
    monkeypatch.setattr(listener, "_TOKEN_SECONDS", 1.0)
    # Who looks after a connection notices only then that it is over.
    monkeypatch.setattr(peers, "_LOOK_SECONDS", 0.05)
    async with serving(Limits(lease_seconds=0.1)) as owner, tc.connect(owner.address) as watch:
        visitors = Visitors(owner.engine, lambda: GrpcConnector(owner.address), watch, sweep=lambda: None)
        await visitors.nothing_grew(24, 72)
