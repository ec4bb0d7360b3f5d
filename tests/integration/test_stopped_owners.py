"""Owners whose process is stopped: their trainers lose the connection, and those of owners that only compute do not."""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack

import pytest
import torch

import trainer_client as tc
from ps_wire.limits import GRPC_OPTIONS
from ps_wire.shared_memory import peers
from ps_wire.shared_memory.hosts import host_id
from tests.conftest import OwnerProcess
from tests.transports import TRANSPORTS
from tests.waiting import until
from trainer_client.session import link
from trainer_client.transport import channels, offers

pytestmark = pytest.mark.skipif(not host_id(), reason="shared-memory connections need Linux")

LIMIT = 15.0
"""Seconds within which a process that is stopped is to be noticed."""

IDLE = 2.0
"""Seconds without a message, in which the quick keepalive of these tests asks several times."""


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainers in this process look often, and are soon sure that an owner has stopped."""
    monkeypatch.setattr(peers, "_LOOK_SECONDS", 0.1)
    monkeypatch.setattr(peers, "_STOPPED_SECONDS", 0.5)
    monkeypatch.setattr(link, "_END_SECONDS", 0.1)
    # An owner that runs has to answer within 2.5 s, however busy the machine is.
    quick = {"grpc.keepalive_time_ms": 300, "grpc.keepalive_timeout_ms": 2500, "grpc.http2.ping_timeout_ms": 2500}
    options = tuple((name, quick.get(name, value)) for name, value in channels._OPTIONS)
    assert dict(options).keys() >= quick.keys()
    monkeypatch.setattr(channels, "_OPTIONS", options)


async def trainers(stack: AsyncExitStack, address: str) -> dict[str, tuple[tc.Client, list[str]]]:
    """One over each transport, and what each is told of its connection."""
    made: dict[str, tuple[tc.Client, list[str]]] = {}
    for transport, options in TRANSPORTS.items():
        told: list[str] = []
        connecting = tc.connect(address, on_state=lambda state, told=told: told.append(state.state), **options)
        made[transport] = (await stack.enter_async_context(connecting), told)
    return made


async def connections(ps: tc.Client) -> tuple[int, int]:
    status = await ps.status()
    return status.shared_memory_connections, status.direct_connections


@pytest.mark.usefixtures("hasty")
async def test_a_stopped_owner_is_noticed_and_reached_again(owner_process: OwnerProcess) -> None:
    async with AsyncExitStack() as stack:
        idle = await trainers(stack, owner_process.address)
        nets = [await ps.module("torch.nn.Linear", 4, 4, name="net") for ps, _ in idle.values()]
        assert await connections(idle["grpc"][0]) == (1, 1)
        await asyncio.sleep(IDLE)  # nothing happens to these
        busy = await trainers(stack, owner_process.address)
        nets += [await ps.module("torch.nn.Linear", 4, 4, name="net") for ps, _ in busy.values()]
        assert await connections(busy["grpc"][0]) == (2, 2)
        every = [told for _, told in (*idle.values(), *busy.values())]
        assert every == [["connecting", "connected"]] * 6
        owner_process.process.send_signal(signal.SIGSTOP)
        waiting = [net(torch.ones(4)) for net in nets]
        await until(lambda: all(told[2:] == ["disconnected"] for told in every), 0.02)
        owner_process.process.send_signal(signal.SIGCONT)
        assert [tuple((await each).shape) for each in waiting] == [(4,)] * 6
        assert [told[3:] for told in every] == [["connected"]] * 6


@pytest.mark.usefixtures("hasty")
async def test_an_owner_that_computes_keeps_its_trainers(owner_process: OwnerProcess) -> None:
    async with AsyncExitStack() as stack:
        every = await trainers(stack, owner_process.address)
        # A call into C that keeps Python from running, for longer than a stopped owner would be waited for.
        seconds = (4.5, 0.0, 0.0)
        holding = [
            ps.call("tests.hosted_models.hold_interpreter", each)
            for (ps, _), each in zip(every.values(), seconds, strict=True)
        ]
        await asyncio.gather(*holding)
        assert [told for _, told in every.values()] == [["connecting", "connected"]] * 3


def test_the_seconds_add_up_to_fifteen() -> None:
    options = dict(GRPC_OPTIONS)
    grpc = (options["grpc.keepalive_time_ms"] + options["grpc.keepalive_timeout_ms"]) / 1000
    # A connection that is closed waits a second at most for the other side.
    assert grpc + link._END_SECONDS + 1.0 <= LIMIT
    idle, pause, count = offers._KEEP_ALIVE.values()
    assert idle + pause * count <= LIMIT
    assert peers._STOPPED_SECONDS + 2 * peers._LOOK_SECONDS <= LIMIT
