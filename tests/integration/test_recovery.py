"""Tests that a pass which was lost is run again, with objects that are asked for again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import optim

import trainer_client as tc
from ps_service.server import Server
from tests.conftest import OwnerProcess, StartProcess
from tests.integration.administering import evict

LINEAR = "torch.nn.Linear"
X = torch.ones(1, 2)


class Training:
    """A program that trains a module, and counts what it does.

    Attributes:
        passes: How often a pass was begun.
        attached: How often the objects were asked for.
    """

    def __init__(self, ps: tc.Client, before_step: Callable[[], Awaitable[Any]] | None = None) -> None:
        self.ps = ps
        self.passes = self.attached = 0
        self._before_step = before_step

    async def attach(self) -> None:
        self.attached += 1
        self.net = await self.ps.module(LINEAR, 2, 1, name="net", seed=0)
        self.opt = await self.ps.optimizer(optim.SGD, self.net.parameters(), lr=0.1)

    async def step(self, ctx: tc.Context, x: torch.Tensor) -> tuple[float, dict[str, int]]:
        self.passes += 1
        loss = (await self.net(x)).sum()
        if self._before_step is not None:
            before, self._before_step = self._before_step, None
            await before()
        await ctx.backward(loss)
        return loss.item(), dict(await self.opt.step(ctx))


async def test_a_pass_that_is_not_lost_runs_once(ps: tc.Client) -> None:
    training = Training(ps)
    await training.attach()
    first = await ps.run(training.step, X)
    assert first[1] == {"ps0": 1}
    assert (await ps.run(training.step, X, attach=training.attach))[0] < first[0]
    assert (training.passes, training.attached) == (2, 1)


async def test_a_pass_that_an_operator_ended_is_run_again(
    owner: Server, ps: tc.Client, caplog: pytest.LogCaptureFixture
) -> None:
    training = Training(ps, partial(evict, owner, unused_seconds=0.0))
    await training.attach()
    assert (await ps.run(training.step, X))[1] == {"ps0": 1}
    assert (training.passes, training.attached) == (2, 1)
    (told,) = [each.getMessage() for each in caplog.records if "is run again" in each.getMessage()]
    assert told.startswith("a pass was lost and is run again (2 of 3): ")


async def _kill_and_start(first: OwnerProcess, start: StartProcess, *flags: str) -> None:
    first.process.kill()
    await first.process.wait()
    await start("--name", "ps0", "--listen", first.address, *flags)


async def test_when_its_owner_was_killed_a_program_goes_on_with_what_it_makes_again(
    start_process: StartProcess,
) -> None:
    owner = await start_process("--name", "ps0")
    async with tc.connect(owner.address) as ps:
        training = Training(ps)
        await training.attach()
        first, _ = await ps.run(training.step, X, attach=training.attach)
        training = Training(ps, partial(_kill_and_start, owner, start_process))
        await training.attach()
        assert await ps.run(training.step, X, attach=training.attach) == (first, {"ps0": 1}), "it began anew"
        assert (training.passes, training.attached) == (2, 2)


async def test_without_attach_the_error_names_the_call_that_helps(start_process: StartProcess) -> None:
    owner = await start_process("--name", "ps0")
    async with tc.connect(owner.address) as ps:
        training = Training(ps, partial(_kill_and_start, owner, start_process))
        await training.attach()
        with pytest.raises(tc.errors.StaleHandleError, match=r"ps\.module\('torch.*Linear', …, name='net'\)"):
            await ps.run(training.step, X)


async def test_a_pass_that_is_lost_again_and_again_is_an_error(ps: tc.Client) -> None:
    async def step(ctx: tc.Context) -> None:
        runs.append(ctx)
        raise tc.errors.ContextLostError("it is gone")

    runs: list[tc.Context] = []
    with pytest.raises(tc.errors.ContextLostError) as caught:
        await ps.run(step, attempts=2)
    assert caught.value.__notes__ == ["the pass was run 2 times, and lost each time"]
    assert len(set(map(id, runs))) == 2


async def test_other_errors_are_not_repeated(ps: tc.Client) -> None:
    async def step(ctx: tc.Context, number: int) -> None:
        runs.append(number)
        raise ZeroDivisionError

    runs: list[int] = []
    with pytest.raises(ZeroDivisionError):
        await ps.run(step, 7)
    assert runs == [7]
    for attempts in (0, 1.5, "3"):
        with pytest.raises(tc.errors.InvalidArgumentError, match=f"at least 1, not {attempts!r}"):
            await ps.run(step, 7, attempts=attempts)  # type: ignore[arg-type]


async def test_what_a_pass_awaits_may_be_cancelled_without_it(ps: tc.Client) -> None:
    async def step(ctx: tc.Context) -> None:
        runs.append(ctx)
        helper = asyncio.create_task(asyncio.Event().wait())
        asyncio.get_running_loop().call_soon(helper.cancel)
        await helper

    runs: list[tc.Context] = []
    with pytest.raises(tc.errors.CancelledCallError, match="something that it awaited"):
        await ps.run(step)
    assert len(runs) == 1
    waiting = asyncio.create_task(_awaited(ps.run(forever)))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def forever(ctx: tc.Context) -> None:
    """A pass that does not end."""
    await asyncio.Event().wait()


async def _awaited(result: Awaitable[None]) -> None:
    await result


def test_a_blocking_program_runs_a_pass_again(owner_process_address: str) -> None:
    with tc.connect(owner_process_address) as ps:
        made: dict[str, Any] = {}
        runs: list[float] = []

        def attach() -> None:
            made["net"] = ps.module(LINEAR, 2, 1, name="net")
            made["opt"] = ps.optimizer(optim.SGD, made["net"].parameters(), lr=0.1, replace=True)

        def step(ctx: Any, x: torch.Tensor) -> dict[str, int]:
            loss = made["net"](x).sum()
            runs.append(loss.item())
            if len(runs) == 1:
                ps.delete("net")
            return dict(ctx.backward(loss, step=made["opt"]))

        attach()
        assert ps.run(step, X, attach=attach) == {"ps0": 1}
        assert len(runs) == 2
