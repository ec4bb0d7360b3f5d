"""Errors of calls that nobody awaits are reported in the log, once, as asyncio reports exceptions of tasks."""

from __future__ import annotations

import asyncio
import gc
import logging
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import optim

import trainer_client as tc
from ps_service.server import Server
from ps_wire.runtime import failures
from tests.integration.linear_layers import X, linear
from tests.integration.replicas_over_owners import pushers
from tests.integration.support import COUNTER, GATE
from tests.training import MODELS, training
from tests.waiting import until
from trainer_client.collectives.communicator import Communicator
from trainer_client.optimizers.parts import RemoteOptimizer

Reports = Callable[[], list[str]]

pytestmark = pytest.mark.usefixtures("reports")


@pytest.fixture
def reports(caplog: pytest.LogCaptureFixture) -> Iterator[Reports]:
    """The reports so far."""

    def found() -> list[str]:
        gc.collect()
        return [each.getMessage() for each in caplog.records if each.name == "trainer_client"]

    gc.collect()
    with caplog.at_level(logging.ERROR, "trainer_client"):
        caplog.clear()
        yield found


async def settled(pending: tc.Pending[Any]) -> None:
    """Waits until a result or an error is there, without reading it."""
    await until(lambda: pending.settled)


async def open_again(owner: Server) -> None:
    """Opens the gate, so that its owner has no threads left that wait there."""
    async with tc.connect(owner.address) as other:
        await (await other.create(GATE, name="gate")).open()


async def test_a_call_that_nobody_awaits_is_reported_with_its_owner(ps: tc.Client, reports: Reports) -> None:
    counter = await ps.create(COUNTER, name="visits")
    failing = counter.fail("no luck")
    await settled(failing)
    assert reports() == []  # the program may still read it
    del failing
    (report,) = reports()
    assert report.startswith("tests.hosted_models.Counter.fail of 'visits' on owner 'ps0' failed, and nobody awaited")
    assert "ValueError: no luck" in report


async def test_functions_and_other_requests_are_reported(ps: tc.Client, reports: Reports) -> None:
    for failing in (ps.call("tests.no_such_function"), ps.delete("nothing"), ps.attach(f"ps://ps9/{0:032x}")):
        await settled(failing)
    del failing
    named = sorted(report.partition(" failed, and")[0] for report in reports())
    assert named == ["Client.attach", "delete on owner 'ps0'", "tests.no_such_function on owner 'ps0'"]


async def test_an_error_that_is_read_is_not_reported(ps: tc.Client, reports: Reports) -> None:
    counter = await ps.create(COUNTER)
    with pytest.raises(ValueError, match=r"first|second"):
        await asyncio.gather(counter.fail("first"), counter.fail("second"))
    with pytest.raises(ValueError, match="third"):
        await counter.fail("third")
    late = counter.fail("fourth")
    await settled(late)
    with pytest.raises(ValueError, match="fourth"):
        late.wait()
    del late
    assert reports() == []


async def test_a_cancelled_call_is_not_reported(ps: tc.Client, reports: Reports) -> None:
    gate = await ps.create(GATE, name="gate")
    waiting = gate.wait()
    waiting.cancel()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await gate.wait()
    await gate.open()
    del waiting
    assert reports() == []


async def test_an_error_of_a_pass_that_an_awaited_call_has_raised_is_not_reported(
    ps: tc.Client, reports: Reports
) -> None:
    counter = await ps.create(COUNTER)
    async with ps.context():
        await settled(counter.fail("the same"))
        await settled(counter.fail("another"))
        assert reports() == []  # the pass may still raise it
        with pytest.raises(ValueError, match="the same"):
            await counter.fail("the same")
    (report,) = reports()
    assert "ValueError: another" in report


async def test_nothing_is_reported_of_a_pass_that_an_exception_has_left(ps: tc.Client, reports: Reports) -> None:
    counter = await ps.create(COUNTER)
    with pytest.raises(KeyError):
        async with ps.context():
            late = counter.fail("later")
            await settled(counter.fail("no luck"))
            raise KeyError
    await settled(late)
    del late
    assert reports() == []


async def test_calls_that_follow_a_failed_one_are_reported_with_it(ps: tc.Client, reports: Reports) -> None:
    counter = await ps.create(COUNTER)
    last = counter.echo(counter.echo(counter.fail("no luck")))
    await settled(last)
    del last
    (report,) = reports()
    assert "Counter.fail on owner" in report
    with pytest.raises(ValueError, match="no more luck"):
        await counter.echo(counter.fail("no more luck"))
    assert len(reports()) == 1


CALLS: list[Callable[[Communicator], tc.Pending[Any]]] = [
    lambda team: team.barrier(),
    lambda team: team.gather(1),
    lambda team: team.gather(1, to=1),
    lambda team: team.broadcast(1),
    lambda team: team.scatter(source=1),
    lambda team: team.all_gather(1),
    lambda team: team.all_reduce(1),
]


async def communicators(ps: tc.Client, other: tc.Client) -> list[Communicator]:
    return await asyncio.gather(*(each.communicator("team", 2, rank) for rank, each in enumerate((ps, other))))


@pytest.mark.parametrize("call", CALLS)
async def test_collectives_are_reported(
    ps: tc.Client, ps2: tc.Client, reports: Reports, call: Callable[[Communicator], tc.Pending[Any]]
) -> None:
    team, other = await communicators(ps, ps2)
    failing = call(team)
    await other.leave()
    await settled(failing)
    assert reports() == []
    del failing
    (report,) = reports()
    assert re.match(r"\w+ of communicator 'team' failed, and nobody awaited the result", report)
    with pytest.raises(tc.errors.UnavailableError):
        await team.barrier()
    assert len(reports()) == 1


async def test_a_communicator_that_nobody_awaits_is_reported(ps: tc.Client, reports: Reports) -> None:
    joining = ps.communicator("team", 2, timeout=0.01)
    await settled(joining)
    del joining
    (report,) = reports()
    assert report.startswith("join of communicator 'team' on owner 'ps0' failed, and nobody awaited the result")


async def test_a_collective_is_not_reported_if_an_exception_has_left_the_block(
    ps: tc.Client, ps2: tc.Client, reports: Reports
) -> None:
    team, _ = await communicators(ps, ps2)
    with pytest.raises(KeyError):
        async with team:
            late = team.barrier()
            raise KeyError
    await settled(late)
    assert isinstance(late.error, tc.errors.UnavailableError)
    del late
    assert reports() == []


async def test_a_backward_and_a_step_that_nobody_awaits_are_reported_once(reports: Reports) -> None:
    async with training() as (_, ps):
        net, _ = await linear(ps, "ps0", f"{MODELS}.Explodes")
        opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1)

        async def fails() -> None:
            async with ps.context() as ctx:
                loss = (await net(X, explode=True)).sum()
                ctx.backward(loss)
                await settled(opt.step(ctx))

        await fails()
        (report,) = reports()
        assert report.startswith("backward of a pass failed") and "broken" in report
        async with ps.context() as ctx:
            ctx.backward((await net(X, explode=True)).sum())
            with pytest.raises(tc.errors.RemoteError, match="broken"):
                await opt.step(ctx)
        assert len(reports()) == 1


async def test_a_step_that_nobody_awaits_is_reported(reports: Reports) -> None:
    async with training() as (_, ps):
        net, _ = await linear(ps)
        opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1, non_finite="refuse")
        async with ps.context() as ctx:
            await ctx.backward((await net(X)).sum() * torch.inf)
            await settled(opt.step(ctx))
        async with ps.context() as ctx:
            await settled(ctx.backward((await net(X)).sum() * torch.inf, step=opt))
        first, second = reports()
        assert first.startswith("step of <DistributedOptimizer torch.optim.sgd.SGD on ps0> failed")
        assert second.startswith("backward with a step of a pass")
        assert "NonFiniteGradientError" in first and "NonFiniteGradientError" in second


async def test_calls_without_an_answer_are_reported_once_when_the_client_closes(
    owner: Server, reports: Reports
) -> None:
    ps = await tc.connect(owner.address)
    gate, counter = await ps.create(GATE, name="gate"), await ps.create(COUNTER)
    failed = counter.fail("no luck")
    await settled(failed)
    left = [gate.wait() for _ in range(3)]
    await ps.close()
    assert all(each.settled for each in left)
    first, second = sorted(reports())
    assert "Counter.fail on" in first and "no luck" in first
    assert "Gate.wait of 'gate' on owner 'ps0' and 2 more failed" in second and "closed" in second
    del left, failed
    assert len(reports()) == 2
    await open_again(owner)


async def test_a_call_that_a_task_awaits_is_not_reported_when_the_client_closes(
    owner: Server, reports: Reports
) -> None:
    ps = await tc.connect(owner.address)
    gate = await ps.create(GATE, name="gate")
    waiting = gate.wait()
    awaited = asyncio.gather(waiting, return_exceptions=True)
    await asyncio.sleep(0)
    await ps.close()
    (error,) = await awaited
    assert isinstance(error, tc.errors.ClosedError)
    assert reports() == []
    await open_again(owner)


async def test_a_client_that_an_exception_closes_reports_no_calls_without_an_answer(
    owner: Server, reports: Reports
) -> None:
    with pytest.raises(KeyError):
        async with tc.connect(owner.address) as ps:
            gate = await ps.create(GATE, name="gate")
            gate.wait()
            ps.run(lambda _: gate.wait())
            await asyncio.sleep(0)  # the pass has begun
            raise KeyError
    ps = await tc.connect(owner.address)
    try:
        gate = await ps.create(GATE, name="gate")
        gate.wait()
        raise KeyError
    except KeyError:
        await ps.close()
    assert reports() == []
    await open_again(owner)


async def test_the_line_of_the_call_is_named_in_debug_mode(
    ps: tc.Client, reports: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failures, "IS_DEBUGGING", True)
    counter = await ps.create(COUNTER)
    line = sys._getframe().f_lineno + 1
    await settled(counter.fail("no luck"))
    (report,) = reports()
    assert f"called at {__file__}:{line}" in report


async def test_errors_of_look_ups_for_batches_that_are_left_are_not_reported(ps: tc.Client, reports: Reports) -> None:
    counter = await ps.create(COUNTER)
    begun: list[tc.Pending[Any]] = []

    def look_up(batch: str) -> tc.Pending[Any]:
        begun.append(counter.fail(batch))
        return begun[-1]

    async for batch, looked_up in ps.prefetch(["first", "second"], look_up, depth=1):
        await settled(begun[1])
        with pytest.raises(ValueError, match="first"):
            async with looked_up.context:
                await looked_up
        assert batch == "first"
        break
    begun.clear()
    assert reports() == []


async def test_what_a_failed_push_has_asked_for_by_itself_is_not_reported(
    reports: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pushers(1, tc.policies.Sync(1)) as (_, (one,)):
        first = next(each for each in one.model.modules() if isinstance(each, tc.Replica))
        asked: list[tc.Pending[int]] = []

        def ask(*args: Any) -> tc.Pending[int]:
            # A pull that will fail, too, after the push.
            asked.append(one.client.delete("nothing"))  # type: ignore[arg-type]
            return asked[-1]

        def settle(*args: Any) -> Any:
            raise tc.errors.RemoteError("broken", "RuntimeError")

        monkeypatch.setattr(first.exchange, "pull", ask)
        monkeypatch.setattr(RemoteOptimizer, "settle", settle)
        with pytest.raises(tc.errors.RemoteError, match="broken"):
            await one.step(torch.ones(1, 3))
        await settled(asked.pop())
    assert reports() == []
