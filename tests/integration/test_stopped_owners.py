"""Owners whose process is stopped: their trainers lose the connection, and those of owners that only compute do not."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

import pytest
import torch

import trainer_client as tc
from ps_wire.limits import GRPC_OPTIONS
from ps_wire.shared_memory import peers
from ps_wire.shared_memory.hosts import host_id
from tests.conftest import OwnerProcess
from tests.transports import TRANSPORTS, over_each
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


def states() -> tuple[list[str], Callable[[tc.ConnectionState], None]]:
    told: list[str] = []
    return told, lambda state: told.append(state.state)


@pytest.mark.usefixtures("hasty")
@over_each
@pytest.mark.parametrize("idle", [0.0, IDLE])
async def test_a_stopped_owner_is_noticed_and_reached_again(
    owner_process: OwnerProcess, transport: str, idle: float
) -> None:
    told, on_state = states()
    async with tc.connect(owner_process.address, on_state=on_state, **TRANSPORTS[transport]) as ps:
        net = await ps.module("torch.nn.Linear", 4, 4, name="net")
        status = await ps.status()
        assert (status.shared_memory_connections, status.direct_connections) == (
            int(transport == "shared_memory"),
            int(transport == "direct"),
        )
        await asyncio.sleep(idle)  # nothing happens
        assert told == ["connecting", "connected"]
        owner_process.process.send_signal(signal.SIGSTOP)
        waiting = net(torch.ones(4))
        await until(lambda: told[2:] == ["disconnected"], 0.02)
        owner_process.process.send_signal(signal.SIGCONT)
        assert (await waiting).shape == (4,)
        assert told[3:] == ["connected"]


@pytest.mark.usefixtures("hasty")
@over_each
async def test_an_owner_that_computes_keeps_its_trainers(owner_process: OwnerProcess, transport: str) -> None:
    told, on_state = states()
    async with tc.connect(owner_process.address, on_state=on_state, **TRANSPORTS[transport]) as ps:
        # One call into C that keeps Python from running, for longer than a stopped owner would be waited for.
        await ps.call("tests.hosted_models.hold_interpreter", 4.5)
        assert told == ["connecting", "connected"]


def test_the_seconds_add_up_to_fifteen() -> None:
    options = dict(GRPC_OPTIONS)
    grpc = (options["grpc.keepalive_time_ms"] + options["grpc.keepalive_timeout_ms"]) / 1000
    # A connection that is closed waits a second at most for the other side.
    assert grpc + link._END_SECONDS + 1.0 <= LIMIT
    idle, pause, count = offers._KEEP_ALIVE.values()
    assert idle + pause * count <= LIMIT
    assert peers._STOPPED_SECONDS + 2 * peers._LOOK_SECONDS <= LIMIT
