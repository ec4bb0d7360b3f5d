"""Tests that calls, backwards and steps of the client stand in torch's profiles."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.autograd import profiler

import trainer_client as tc
from tests.conftest import SERVE
from tests.forking.process import Forking
from tests.integration.support import AFFINE, COUNTER
from trainer_client.session.session import Session


@pytest.fixture(scope="module")
def address(forking: Forking) -> Iterator[str]:
    with forking.start(*SERVE, "--threads", "4") as process:
        line = process.stdout.readline()
        assert " is serving on " in line, line
        yield line.split()[-1]
        process.terminate()
        assert process.wait() == 0


@pytest.fixture
def ps(address: str) -> Iterator[Any]:
    with tc.connect(address) as client:
        yield client


def test_a_pass_is_shown_from_its_forward_to_its_step(ps: Any) -> None:
    net = ps.module(AFFINE, 2, 1)
    optimizer = ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1)
    with profiler.profile() as prof, ps.context() as ctx:
        loss = net(torch.ones(3, 2)).sum()
        ctx.backward(loss)
        optimizer.step(ctx)
    found = {event.name: event for event in prof.function_events}
    call = f"rpc_call#{AFFINE}.forward(trainer -> ps0)"
    assert found[call].is_async
    assert found[f"{call}#remote_op: aten::mm"].node_id == 0
    assert any(name.startswith("rpc_backward(trainer -> ps0)#remote_op: MmBackward0") for name in found)
    assert any(name.startswith("rpc_step(trainer -> ps0)#remote_op: ") for name in found)


def test_a_result_that_stays_on_the_owner_is_shown(ps: Any) -> None:
    counter = ps.create(COUNTER)
    with profiler.profile() as prof:
        handle = counter.remote("add", 2)
    assert handle.to_here() == 2
    calls = [event.name for event in prof.function_events if event.name.startswith("rpc_call#")]
    assert [name for name in calls if "#remote_op" not in name] == [f"rpc_call#{COUNTER}.add(trainer -> ps0)"]


async def test_calls_of_a_task_are_shown(address: str) -> None:
    async with tc.connect(address) as ps:
        counter = await ps.create(COUNTER)
        with profiler.profile() as prof:
            first = counter.add(2)
            assert await counter.add(first) == 4
    calls = [event.name for event in prof.function_events if event.name.startswith("rpc_call#")]
    assert [name for name in calls if "#remote_op" not in name] == [f"rpc_call#{COUNTER}.add(trainer -> ps0)"] * 2


def test_a_call_without_a_profiler_asks_for_nothing(ps: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    send = Session.send

    def sent(self: Session, in_flight: Any) -> Any:
        asked.append(in_flight.frame.request.HasField("probe"))
        return send(self, in_flight)

    monkeypatch.setattr(Session, "send", sent)
    ps.create(COUNTER).add(1)
    with profiler.emit_itt(enabled=False):
        ps.create(COUNTER).add(1)
    assert asked and not any(asked)
