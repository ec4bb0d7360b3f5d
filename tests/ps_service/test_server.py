"""Tests the addresses of servers, their health, and how they stop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

import trainer_client as tc
from ps_service.engine import Engine
from ps_service.hosting.allowlist import AllowList
from ps_service.rpc.methods import SERVICE
from ps_service.server import Server
from ps_wire.limits import Limits
from tests.ports import ReservedPort
from tests.ps_service import service_models
from tests.ps_service.service_models import Latch

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
LATCH = "tests.ps_service.service_models.Latch"


def owner(name: str = "ps0", **limits: Any) -> Engine:
    return Engine(name, AllowList([service_models]), limits=Limits(**limits), threads=4)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with Server(owner()) as server:
        yield server


async def health(channel: grpc.aio.Channel, service: str = "") -> int:
    reply = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=service))
    return int(reply.status)


class Heard(logging.Handler):
    """Waits for a record instead of sleeping."""

    def __init__(self, logger: str, wanted: Callable[[str], bool]) -> None:
        super().__init__()
        self._event, self._wanted, self._logger = asyncio.Event(), wanted, logging.getLogger(logger)

    def emit(self, record: logging.LogRecord) -> None:
        if self._wanted(record.getMessage()):
            self._event.set()

    async def __aenter__(self) -> Heard:
        self._logger.addHandler(self)
        self._before = self._logger.level
        self._logger.setLevel(logging.INFO)
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            async with asyncio.timeout(50):
                await self._event.wait()
        finally:
            self._logger.removeHandler(self)
            self._logger.setLevel(self._before)


# Where it listens


async def test_port_0_is_a_free_port() -> None:
    async with Server(owner("ps0")) as one, Server(owner("ps1")) as other:
        assert one.address != other.address
        assert one.address.startswith("127.0.0.1:") and not one.address.endswith(":0")
        async with tc.connect(one.address, other.address) as ps:
            assert ps.owners == ["ps0", "ps1"]


async def test_two_owners_never_share_a_port(server: Server) -> None:
    engine = owner("ps1")
    with pytest.raises(
        OSError, match=f"cannot listen on {server.address}: is another owner, or another program, there"
    ):
        await Server(engine, server.address).start()
    engine.close()


async def test_the_port_is_free_again_afterwards() -> None:
    with ReservedPort() as port:
        async with Server(owner(), port.address) as first:
            assert first.address == port.address
        async with Server(owner(), port.address) as second:
            assert second.address == port.address


@pytest.mark.parametrize("error", [OSError("no"), asyncio.CancelledError()], ids=repr)
async def test_a_start_that_fails_leaves_nothing_open(error: BaseException) -> None:
    server = Server(owner(), direct_port=0)
    before = asyncio.all_tasks()

    def fail(listen: str) -> None:
        raise error

    server.servicer.direct.open = fail  # type: ignore[method-assign,assignment]
    with pytest.raises(type(error)):
        await server.start()
    async with Server(owner(), server.address), tc.connect(server.address) as ps:
        await ps.status()
    assert asyncio.all_tasks() <= before
    await server.stop()


async def test_an_address_that_is_not_this_machines_is_told_as_such() -> None:
    engine = owner()
    with pytest.raises(OSError, match=r"cannot listen on 203\.0\.113\.1:0: (?!is another)"):
        await Server(engine, "203.0.113.1:0", insecure=True).start()
    engine.close()


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "127.8.9.10:0", "localhost:0", "[::1]:0", "unix:/tmp/socket"])
async def test_loopback_needs_no_leave(listen: str) -> None:
    engine = owner()
    assert not Server(engine, listen).kept.is_set()
    engine.close()


@pytest.mark.parametrize(
    "listen",
    [
        "0.0.0.0:0",
        "[::]:0",
        "10.0.0.1:1",
        "example.org:1",
        "localhost.example.org:1",
        "*:1",
        ":1",
        "127.0.0.1.nip.io:1",
    ],
)
async def test_any_other_address_needs_leave(listen: str) -> None:
    engine = owner()
    with pytest.raises(ValueError, match=r"traffic is not encrypted.*pass --insecure if the network is trusted"):
        Server(engine, listen)
    Server(engine, listen, insecure=True)
    engine.close()


# Health and reflection


async def test_the_health_service_reports_serving(server: Server) -> None:
    async with grpc.aio.insecure_channel(server.address) as channel:
        assert await health(channel) == await health(channel, SERVICE) == SERVING
        with pytest.raises(grpc.aio.AioRpcError, match="NOT_FOUND"):
            await health(channel, "another.Service")


async def test_reflection_lists_the_services(server: Server) -> None:
    async with grpc.aio.insecure_channel(server.address) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        asked = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
        (reply,) = [reply async for reply in stub.ServerReflectionInfo(asked)]
    names = {service.name for service in reply.list_services_response.service}
    assert {SERVICE, "grpc.health.v1.Health"} <= names


# How it ends


async def test_draining_refuses_new_work_and_lets_running_work_end(server: Server) -> None:
    async with grpc.aio.insecure_channel(server.address) as channel, tc.connect(server.address) as ps:
        handle = await ps.create(LATCH, name="latch")
        latch: Latch = server.engine.registry.named("latch").value
        running = handle.wait()
        await asyncio.to_thread(latch.begun.wait, 20)
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == SERVING
        draining = asyncio.create_task(server.drain(20.0))
        assert (await watch.read()).status == NOT_SERVING
        assert await health(channel, SERVICE) == NOT_SERVING
        with pytest.raises(tc.errors.UnavailableError, match="'ps0' is shutting down"):
            await handle.wait()
        with pytest.raises(tc.errors.UnavailableError, match="shutting down"):
            await tc.connect(server.address, connect_timeout=0.0)
        assert not (await ps.status()).serving
        assert not draining.done()
        latch.opened.set()
        assert await running == "through"
        await draining


async def test_draining_ends_when_its_time_is_up(server: Server) -> None:
    async with tc.connect(server.address, reconnect_timeout=0.0) as ps:
        handle = await ps.create(LATCH, name="latch")
        latch: Latch = server.engine.registry.named("latch").value
        running = handle.wait()
        await asyncio.to_thread(latch.begun.wait, 20)
        async with Heard("ps_service.events", lambda said: "work was still running after 0.01 s" in said):
            stopping = asyncio.create_task(server.drain(0.01))
        with pytest.raises(tc.PsError):
            await running
        latch.opened.set()
        await stopping


async def test_an_idle_owner_drains_at_once(server: Server) -> None:
    async with tc.connect(server.address):
        async with asyncio.timeout(50):
            await server.drain(3600.0)
        assert server.kept.is_set()


async def test_stopping_twice_is_the_same_as_once(server: Server) -> None:
    await server.stop()
    await server.stop()


async def test_stopping_leaves_code_behind_that_does_not_end(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    async with tc.connect(server.address, reconnect_timeout=0.0) as ps:
        handle = await ps.create(LATCH, name="latch")
        latch: Latch = server.engine.registry.named("latch").value
        running = handle.wait()
        await asyncio.to_thread(latch.begun.wait, 20)
        await server.stop(0.01)
        assert f"1 of them still run {LATCH}.wait" in caplog.text
        with pytest.raises(tc.PsError):
            await running
        assert not latch.ended.is_set()
        latch.opened.set()
        await asyncio.to_thread(latch.ended.wait, 20)


async def test_a_server_that_never_started_can_be_stopped() -> None:
    await Server(owner()).stop()


# Sessions that are gone


async def test_a_session_is_freed_when_its_lease_is_over() -> None:
    engine = owner(lease_seconds=0.05)
    async with Server(engine) as server:
        ps = await tc.connect(server.address, reconnect_timeout=0.0)
        await ps.create(LATCH)
        assert (len(engine.registry), len(engine.sessions)) == (1, 1)
        async with Heard("ps_service.events", lambda said: "is lost: it has had no connection" in said):
            for session in ps._sessions.opening:  # the trainer vanishes without a goodbye
                await session._link.stop()
        assert (len(engine.registry), len(engine.sessions), len(engine.reply_cache)) == (0, 0, 0)
        await ps.close()


async def test_leases_run_out_although_one_session_cannot_be_ended(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = owner(lease_seconds=0.05)
    forget = engine.contexts.forget
    broken: list[bytes] = []

    def fails_once(trainer: bytes) -> None:
        if not broken:
            broken.append(trainer)
            raise ZeroDivisionError
        forget(trainer)

    monkeypatch.setattr(engine.contexts, "forget", fails_once)
    async with Server(engine) as server:
        for _ in range(2):
            ps = await tc.connect(server.address, reconnect_timeout=0.0)
            await ps.create(LATCH)
            async with Heard("ps_service.events", lambda said: "is lost: it has had no connection" in said):
                for session in ps._sessions.opening:
                    await session._link.stop()
            assert (len(engine.registry), len(engine.sessions), len(engine.reply_cache)) == (0, 0, 0)
            await ps.close()
    assert "could not be ended" in caplog.text


@pytest.mark.parametrize(
    "limits",
    [
        {"lease_seconds": 0.01, "max_context_seconds": 3600.0},
        {"lease_seconds": 0.01, "max_context_seconds": 0.0},
        {"lease_seconds": 3600.0, "max_context_seconds": 0.01},
    ],
    ids=["lease", "lease alone", "contexts"],
)
async def test_sweeps_follow_the_shortest_time_limit_and_one_that_fails_is_not_the_last(
    limits: dict[str, float], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = owner(**limits)
    expired, fails = engine.sessions.expired, asyncio.Event()
    again = asyncio.Event()

    def fails_once() -> Any:
        if not fails.is_set():
            fails.set()
            raise ZeroDivisionError
        again.set()
        return expired()

    monkeypatch.setattr(engine.sessions, "expired", fails_once)
    async with Server(engine):
        async with asyncio.timeout(50):
            await again.wait()
    assert "checking the leases failed" in caplog.text
