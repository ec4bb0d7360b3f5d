"""Tests that a pass which is run again counts once on each owner, wherever it was lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn, optim

import trainer_client as tc
from ps_service.hosting.objects import HostedObject
from ps_service.requests.operations import OPERATIONS
from ps_service.tables.optimizer import RowOptimizer
from ps_service.training import joint_steps
from ps_service.training.optimizers import HostedOptimizer
from tests.conftest import StartOwner
from tests.integration.administering import checkpoint, evict
from tests.integration.held import held_method
from tests.integration.restarting import Owner
from tests.waiting import until
from trainer_client.client.blocking import BlockingClient
from trainer_client.client.passes import Attempts

LINEAR = "torch.nn.Linear"
X = torch.ones(1, 2)
IDS = torch.tensor([1, 2, 3, 4, 5, 6])

Happening = Callable[[], Awaitable[Any]]


class Training:
    """A program that trains a layer on each owner, a table over both, and a parameter of its own.

    Attributes:
        passes: How often a pass was begun.
        before, after: What happens before and after the step of the first pass.
        step: Makes the step of a pass, and returns the versions.
    """

    def __init__(self, ps: Any, step: str = "step", **options: Any) -> None:
        self.ps, self.how, self.options = ps, step, options
        self.passes = 0
        self.own = nn.Parameter(torch.zeros(2))
        self.before: Happening | None = None
        self.after: Happening | None = None

    async def attach(self) -> None:
        ps = self.ps
        self.nets = [await ps.module(LINEAR, 2, 1, name=f"net{n}", owner=f"ps{n}", seed=0) for n in range(2)]
        parameters: list[Any] = [each for net in self.nets for each in net.parameters()]
        if self.how == "local":
            parameters.append(self.own)
        if self.how == "tables":
            policy = self.options.get("policy")
            self.items = await ps.table("items", 2, tc.tables.SGD(lr=1.0), init=tc.tables.Zeros(), policy=policy)
            parameters.append(self.items)
        self.opt = await ps.optimizer(
            optim.SGD, parameters, lr=1.0, name="" if self.how == "tables" else "opt", **self.options
        )

    async def step(self, ctx: tc.Context) -> Any:
        self.passes += 1
        loss = sum([(await net(X)).sum() for net in self.nets]) + self.own.sum()
        if self.how == "tables":
            loss = loss + (await self.items(IDS)).sum()
        if self.how != "fused":
            await ctx.backward(loss)
        await self._happens(self.before)
        if self.how == "fused":
            versions = await ctx.backward(loss, step=self.opt)
        elif self.how in ("values", "tables"):
            versions = await self.opt.step(ctx, values={"passes": 1}, reduce="sum")
        else:
            versions = await self.opt.step(ctx)
        await self._happens(self.after)
        return versions

    async def _happens(self, what: Happening | None) -> None:
        if what is not None and self.passes == 1:
            await what()

    def counting(self) -> Any:
        """The optimizer that counts reported values."""
        return self.opt.parameters if self.how == "tables" else self.opt

    async def counts(self) -> list[float]:
        """How often the gradient of each layer was applied, whose elements are 1."""
        torch.manual_seed(0)
        first = nn.Linear(2, 1).bias.detach()
        return [round(float(first - (await net.state_dict())["bias"]), 4) for net in self.nets]


HOW = ["step", "fused", "local", "tables", "values"]


async def trained(training: Training, attach: bool = True, passes: int = 1) -> dict[str, int]:
    await training.attach()
    for _ in range(passes):
        made = await training.ps.run(training.step, attach=training.attach if attach else None)
    return {name.partition("/")[0]: version for name, version in made.items()}


@pytest.mark.parametrize(("how", "lost"), [*((how, 1) for how in HOW), ("step", 0)])
async def test_a_step_that_one_owner_has_lost_counts_once_on_the_others(
    start_owner: StartOwner, how: str, lost: int
) -> None:
    owners = [await start_owner(name) for name in ("ps0", "ps1")]
    async with tc.connect(*(each.address for each in owners)) as ps:
        training = Training(ps, how, non_finite="apply")
        training.before = partial(evict, owners[lost], unused_seconds=0.0)
        versions = await trained(training)
        assert (training.passes, versions) == (2, {"ps0": 1, "ps1": 1})
        assert await training.counts() == [1.0, 1.0]
        await ps.run(training.step)
        assert await training.counts() == [2.0, 2.0], "later passes count"
        if how == "local":
            assert training.own.tolist() == [-2.0, -2.0]
        if how == "tables":
            assert torch.equal(await training.items(IDS), torch.full((6, 2), -2.0))
        if how in ("values", "tables"):
            assert await training.counting().values() == {"passes": 2}


async def _lost() -> None:
    raise tc.errors.SessionLostError("the answer of the step was lost")


@pytest.mark.parametrize(
    ("how", "policy"),
    [
        *((how, None) for how in HOW),
        *(
            ("values", policy)
            for policy in (
                tc.policies.Async(),
                tc.policies.Sync(trainers=1),
                tc.policies.Quorum(1),
                tc.policies.BoundedStaleness(1),
            )
        ),
        *((how, tc.policies.Sync(trainers=1)) for how in ("fused", "tables")),
    ],
    ids=str,
)
async def test_a_step_whose_answer_was_lost_counts_once(
    pair: tc.Client, how: str, policy: tc.policies.Policy | None
) -> None:
    training = Training(pair, how, policy=policy)
    training.after = _lost
    versions = await trained(training)
    assert (training.passes, versions) == (2, {"ps0": 1, "ps1": 1})
    assert await training.counts() == [1.0, 1.0]
    await pair.run(training.step)
    assert await training.counts() == [2.0, 2.0]
    if how == "local":
        assert training.own.tolist() == [-2.0, -2.0]
    if how in ("values", "tables"):
        assert await training.counting().values() == {"passes": 2}


async def test_an_attempt_after_several_others_counts_once(pair: tc.Client) -> None:
    training = Training(pair)
    await training.attach()

    async def step(ctx: tc.Context) -> dict[str, int]:
        versions: dict[str, int] = await training.step(ctx)
        if training.passes < 4:
            await _lost()
        return versions

    assert await pair.run(step, attach=training.attach, attempts=5) == {"ps0": 1, "ps1": 1}
    assert await training.counts() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("how", "policy"),
    [
        ("values", None),
        ("tables", None),
        ("values", tc.policies.Sync(trainers=1)),
        ("tables", tc.policies.Sync(trainers=1)),
    ],
    ids=str,
)
async def test_a_step_counts_once_if_it_still_runs_when_the_next_attempt_asks_for_it(
    start_owner: StartOwner, monkeypatch: pytest.MonkeyPatch, how: str, policy: tc.policies.Policy | None
) -> None:
    owners = [await start_owner(name) for name in ("ps0", "ps1")]
    async with tc.connect(*(each.address for each in owners)) as ps:
        training = Training(ps, how, policy=policy)
        await training.attach()
        (optimizer,) = [each.value for each in owners[0].engine.registry.objects() if is_of_parameters(each)]
        if policy is not None:
            running = held_method(monkeypatch, optimizer.aggregator.steps, "apply")
        elif how == "tables":
            running = held_method(monkeypatch, joint_steps, "_apply")
        else:
            running = held_method(monkeypatch, optimizer, "apply")
        known, asked = OPERATIONS["step"], list[int]()

        def noted(ctx: Any, request: Any, reply: Any) -> None:
            if ctx.engine is owners[0].engine and not (request.check_only or request.offer.withdraw):
                asked.append(training.passes)
            known.handle(ctx, request, reply)

        async def step(ctx: tc.Context) -> Any:
            training.passes += 1
            loss = sum([(await net(X)).sum() for net in training.nets])
            if how == "tables":
                loss = loss + (await training.items(IDS)).sum()
            await ctx.backward(loss)
            stepping = training.opt.step(ctx, values={"passes": 1}, reduce="sum")
            if training.passes == 1:
                await running.has_come()
                stepping.cancel()
                await _lost()
            return await stepping

        with running:
            monkeypatch.setitem(OPERATIONS, "step", replace(known, handle=noted, expected_seconds=None))
            passes = ps.run(step)
            await until(lambda: 2 in asked)
            await running.go_on()
            await passes
        assert training.passes == 2
        assert await training.counts() == [1.0, 1.0]
        assert await training.counting().values() == {"passes": 1}


def is_of_parameters(hosted: HostedObject) -> bool:
    return isinstance(hosted.value, HostedOptimizer) and not isinstance(hosted.value.optimizer, RowOptimizer)


@pytest.mark.filterwarnings("ignore:a second step of the same optimizer")
async def test_several_steps_of_a_pass_count_once_each(pair: tc.Client) -> None:
    training = Training(pair)
    await training.attach()
    opts = [await pair.optimizer(optim.SGD, net.parameters(), lr=1.0) for net in training.nets]
    passes = []

    async def step(ctx: tc.Context) -> None:
        passes.append(ctx)
        loss = sum([(await net(X)).sum() for net in training.nets])
        await ctx.backward(loss)
        await opts[0].step(ctx)
        await opts[0].step(ctx)
        if len(passes) == 1:
            await _lost()
        await opts[0].step(ctx)
        await opts[1].step(ctx)
        if len(passes) == 2:
            await _lost()

    await pair.run(step)
    assert len(passes) == 3
    assert await training.counts() == [3.0, 1.0]


async def test_passes_at_once_are_not_taken_for_each_other(pair: tc.Client) -> None:
    training = Training(pair)
    await training.attach()
    failed: set[int] = set()

    async def step(ctx: tc.Context, number: int) -> None:
        loss = sum([(await net(X)).sum() for net in training.nets])
        await ctx.backward(loss)
        await training.opt.step(ctx)
        if number % 2 and number not in failed:
            failed.add(number)
            await _lost()

    await asyncio.gather(*(pair.run(step, number) for number in range(10)))
    assert await training.counts() == [10.0, 10.0]


async def test_a_pass_of_another_trainer_is_not_taken_for_this_one(start_owner: StartOwner) -> None:
    owners = [await start_owner(name) for name in ("ps0", "ps1")]
    addresses = [each.address for each in owners]
    async with tc.connect(*addresses) as one, tc.connect(*addresses) as other:
        for ps in one, other:
            training = Training(ps)
            training.after = _lost
            await trained(training)
        assert await training.counts() == [2.0, 2.0]


@pytest.mark.parametrize("blocking", [False, True])
async def test_restarts_in_order_do_not_count_as_attempts(tmp_path: Path, blocking: bool) -> None:
    async with AsyncExitStack() as stack:
        owners = [await stack.enter_async_context(Owner(tmp_path / name, name)) for name in ("ps0", "ps1")]
        ps = await stack.enter_async_context(tc.connect(*(each.address for each in owners)))
        training = Training(ps)
        await training.attach()
        loop, passes = asyncio.get_running_loop(), []

        async def step(ctx: tc.Context) -> dict[str, int]:
            passes.append(ctx)
            loss = sum([(await net(X)).sum() for net in training.nets])
            await ctx.backward(loss)
            if len(passes) <= 4:
                await owners[len(passes) % 2].restart(drain_seconds=0)
            elif len(passes) == 5:
                await _lost()
            return dict(await training.opt.step(ctx))

        def step_here(ctx: Any) -> dict[str, int]:
            return asyncio.run_coroutine_threadsafe(step(ctx.unwrapped), loop).result(60)

        with pytest.raises(tc.errors.SessionLostError, match="the answer of the step was lost") as caught:
            if blocking:
                await asyncio.to_thread(BlockingClient(ps).run, step_here, attempts=1)
            else:
                await ps.run(step, attempts=1)
        assert len(passes) == 5 and caught.value.__notes__ == ["the pass was run 5 times, and lost each time"]


def test_restarts_that_do_not_count_have_an_end_too() -> None:
    attempts, error = Attempts(1, attaches=False), tc.errors.DrainingError("it is about to stop")
    for _ in range(100):
        attempts.failed(error)
    with pytest.raises(tc.errors.DrainingError):
        attempts.failed(error)
    assert error.__notes__ == ["the pass was run 101 times, and lost each time"]


def test_a_blocking_program_has_the_same(owner_process_address: str) -> None:
    with tc.connect(owner_process_address) as ps:
        net = ps.module(LINEAR, 2, 1, name="net", seed=0)
        opt = ps.optimizer(optim.SGD, net.parameters(), lr=1.0)
        passes = []

        def step(ctx: tc.Context) -> Any:
            passes.append(ctx)
            ctx.backward(net(X).sum())
            stepped = opt.step(ctx)
            if len(passes) == 1:
                raise tc.errors.SessionLostError("the answer of the step was lost")
            return stepped

        assert ps.run(step) == {"ps0": 1}
        assert len(passes) == 2


async def test_it_counts_once_when_owners_start_again(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        owners = [await stack.enter_async_context(Owner(tmp_path / name, name)) for name in ("ps0", "ps1")]
        ps = await stack.enter_async_context(tc.connect(*(each.address for each in owners)))
        training = Training(ps)

        async def one_starts_again() -> None:
            await owners[1].restart(drain_seconds=0)

        async def both_start_again() -> None:
            for each in owners:
                await each.restart(drain_seconds=0)

        training.before = one_starts_again
        assert await trained(training) == {"ps0": 1, "ps1": 1}
        training.before, training.passes = both_start_again, 0
        await ps.run(training.step, attach=training.attach)
        assert await training.counts() == [2.0, 2.0]

        async def lost_after_restarts() -> None:
            await both_start_again()
            await _lost()

        training.before, training.after, training.passes = None, lost_after_restarts, 0
        await ps.run(training.step, attach=training.attach)
        assert training.passes == 2
        assert await training.counts() == [3.0, 3.0], "the checkpoint says what was applied"


@pytest.mark.parametrize("written", [False, True])
async def test_it_counts_once_when_an_owner_is_killed(tmp_path: Path, written: bool) -> None:
    async with AsyncExitStack() as stack:
        owners = [await stack.enter_async_context(Owner(tmp_path / name, name)) for name in ("ps0", "ps1")]
        ps = await stack.enter_async_context(tc.connect(*(each.address for each in owners)))
        training = Training(ps)
        await training.attach()
        await checkpoint(owners[0].address)

        async def killed() -> None:
            if written:
                await checkpoint(owners[0].address)
            await owners[0].crash()
            await _lost()

        training.after = killed
        await trained(training)
        assert await training.counts() == [1.0, 1.0], "applied again where the checkpoint does not have it"
