"""Trainers that are stopped: they lose their lease, and those that only compute do not."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

import ps_service.server
import trainer_client as tc
from ps_service.server import Server
from ps_wire.limits import Limits
from ps_wire.shared_memory import peers
from ps_wire.shared_memory.hosts import host_id
from ps_wire.shared_memory.peers import PeerProcess
from tests.forking.process import AsyncForked, Forking
from tests.integration.support import serving
from tests.transports import TRANSPORTS
from tests.waiting import until

pytestmark = pytest.mark.skipif(not host_id(), reason="shared-memory connections need Linux")


class Trainer:
    """A trainer in a process of its own, which is in the midst of a pass and waits for an answer."""

    def __init__(self, process: AsyncForked) -> None:
        self.process = process

    async def line(self) -> str:
        async with asyncio.timeout(60):
            return (await self.process.stdout.readline()).decode().strip()


@asynccontextmanager
async def trainer(forking: Forking, owner: Server, transport: str, what: str) -> AsyncIterator[Trainer]:
    process = await forking.begin("tests.integration.stopped_trainer", owner.address, transport, what)
    gates: list[Any] = []
    try:
        started = Trainer(process)
        assert await started.line() == "ready"
        gates += [each.value for each in owner.engine.registry.objects() if not each.name]
        yield started
        async with asyncio.timeout(60):
            assert await process.wait() == 0
    finally:
        # The owner's threads that wait at them must end, too.
        for gate in gates:
            gate.open()
        await process.aclose()


@pytest.fixture
async def hasty(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Server]:
    """An owner that looks often, and is soon sure that a trainer has stopped."""
    monkeypatch.setattr(peers, "_LOOK_SECONDS", 0.1)
    monkeypatch.setattr(peers, "_STOPPED_SECONDS", 0.5)
    # A trainer that runs has to answer within 2.5 s, however busy the machine is.
    nonblocking = {
        "grpc.keepalive_time_ms": 1000,
        "grpc.keepalive_timeout_ms": 2500,
        "grpc.http2.ping_timeout_ms": 2500,
    }
    options = [(name, nonblocking.get(name, value)) for name, value in ps_service.server.OPTIONS]
    assert dict(options).keys() >= nonblocking.keys()
    monkeypatch.setattr(ps_service.server, "OPTIONS", options)
    async with serving(Limits(lease_seconds=0.5), threads=8) as owner:
        yield owner


async def until_sessions(owner: Server, count: int) -> None:
    await until(lambda: len(owner.engine.sessions) == count, 0.02)


async def test_a_stopped_trainer_loses_its_session_and_is_told_later(forking: Forking, hasty: Server) -> None:
    engine = hasty.engine
    async with AsyncExitStack() as stack:
        every = [await stack.enter_async_context(trainer(forking, hasty, way, "waits")) for way in TRANSPORTS]
        assert (len(engine.shared_memory), len(engine.direct), len(engine.contexts)) == (1, 1, 3)
        for stopped in every:
            stopped.process.send_signal(signal.SIGSTOP)
        await until_sessions(hasty, 0)
        # Their passes, what those had pinned, and their anonymous objects.
        assert len(engine.contexts) == 0
        assert [each.name for each in engine.registry.objects()] == ["net"]
        for stopped in every:
            stopped.process.send_signal(signal.SIGCONT)
            assert await stopped.line() == "waited SessionLostError"
            assert await stopped.line() == "again 4"


async def test_a_trainer_that_computes_keeps_its_session(forking: Forking, hasty: Server) -> None:
    async with AsyncExitStack() as stack:
        each = [await stack.enter_async_context(trainer(forking, hasty, way, "computes")) for way in TRANSPORTS]
        # For longer than a stopped one would be waited for, no Python runs there.
        assert [await computing.line() for computing in each] == ["called 4 lost 0"] * 3


async def test_a_trainer_that_is_stopped_for_a_moment_loses_nothing(
    forking: Forking, hasty: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "_STOPPED_SECONDS", 600.0)
    async with trainer(forking, hasty, "shared_memory", "waits") as stopped:
        stopped.process.send_signal(signal.SIGSTOP)
        await until(lambda: hasty.servicer.shared_memory.watch.stopped, 0.02)
        stopped.process.send_signal(signal.SIGCONT)
        await until(lambda: not hasty.servicer.shared_memory.watch.stopped, 0.02)
        assert len(hasty.engine.sessions) == 1 and len(hasty.engine.shared_memory) == 1
        (gate,) = [each.value for each in hasty.engine.registry.objects() if not each.name]
        gate.open()
        assert await stopped.line() == "again 4"


async def test_a_trainer_whose_process_cannot_be_seen_stays_on_grpc(
    hasty: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unseen(self: PeerProcess, pid: int) -> None:
        raise LookupError(f"process {pid} cannot be seen from here")

    monkeypatch.setattr(PeerProcess, "__init__", unseen)
    async with tc.connect(hasty.address) as ps:
        assert (await ps.status()).shared_memory_connections == 0
