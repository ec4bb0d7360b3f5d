"""Tests of policies with real trainers and owners: which gradients make up a step, and who waits for whom."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import NamedTuple

import pytest
import torch
from torch import nn, optim

import trainer_client as tc
from ps_service.server import Server
from ps_service.training.optimizers import HostedOptimizer
from tests import autograd_models
from tests.optimizer_models import Pausing
from tests.training import apart, owners, same_state
from tests.waiting import until
from trainer_client.optimizers import parts
from trainer_client.session import waits
from trainer_client.session.stepped import Stepped


class Trainer(NamedTuple):
    """A trainer with its handles."""

    client: tc.Client
    net: tc.RemoteModule
    opt: tc.DistributedOptimizer

    async def step(self, x: torch.Tensor, joined: bool = False) -> Stepped:
        """A forward, a backward and a step of the mean of squares."""
        return await apart(self._step(x, joined))

    async def _step(self, x: torch.Tensor, joined: bool) -> Stepped:
        async with self.client.context() as ctx:
            loss = (await self.net(x)).square().mean()
            if joined:
                return await ctx.backward(loss, step=self.opt)
            await ctx.backward(loss)
            return await self.opt.step(ctx)


@asynccontextmanager
async def trainers(
    count: int, policy: tc.policies.Policy | None, threads: int = 8, **options: object
) -> AsyncIterator[tuple[Server, list[Trainer]]]:
    """An owner, and trainers of one layer and one optimizer."""
    async with owners("ps0", threads=threads) as (server,), AsyncExitStack() as stack:
        made = []
        for _ in range(count):
            client = await stack.enter_async_context(tc.connect(server.address))
            net = await client.module("torch.nn.Linear", 3, 2, name="net", seed=1)
            opt = await client.optimizer(
                optim.SGD,
                net.parameters(),
                lr=0.1,
                momentum=0.9,
                policy=policy,
                **options,  # type: ignore[arg-type]
            )
            made.append(Trainer(client, net, opt))
        yield server, made


def batches(count: int, rows: int = 4) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(count)
    return [torch.randn(rows, 3, generator=generator) for _ in range(count)]


async def local(trainer: Trainer) -> tuple[nn.Linear, optim.SGD]:
    """The same layer and optimizer here."""
    net = nn.Linear(3, 2)
    net.load_state_dict(await trainer.net.state_dict())
    return net, optim.SGD(net.parameters(), lr=0.1, momentum=0.9)


def learn(net: nn.Module, opt: optim.Optimizer, x: torch.Tensor, factor: float = 1.0) -> None:
    opt.zero_grad()
    (net(x).square().mean() * factor).backward()
    opt.step()


def hosted(server: Server) -> HostedOptimizer:
    (found,) = [each.value for each in server.engine.registry.objects() if isinstance(each.value, HostedOptimizer)]
    return found


def waiting(server: Server) -> int:
    """How many offers wait."""
    return len(hosted(server).aggregator._offered)


@pytest.mark.parametrize("joined", [False, True], ids=["step by itself", "step with the backward"])
@pytest.mark.parametrize("reduce", ["mean", "sum"])
async def test_sync_steps_are_those_of_one_process_with_the_whole_batch(reduce: str, joined: bool) -> None:
    async with trainers(3, tc.policies.Sync(3, reduce)) as (_, group):  # type: ignore[arg-type]
        net, opt = await local(group[0])
        for xs in (batches(3), batches(6)[3:]):
            found = await asyncio.gather(*(each.step(x, joined) for each, x in zip(group, xs, strict=True)))
            learn(net, opt, torch.cat(xs), 3.0 if reduce == "sum" else 1.0)
            await same_state(group[0].net, net)
        assert found == [{"ps0": 2}] * 3
        assert [(each.staleness, each.counted, each.dropped) for each in found] == [(0, 3, "")] * 3


async def test_without_a_policy_every_step_is_applied_at_once() -> None:
    async with trainers(2, None) as (server, group):
        net, opt = await local(group[0])
        for each, x in zip(group, batches(2), strict=True):
            assert (await each.step(x)).counted == 1
            learn(net, opt, x)
        await same_state(group[0].net, net)
        assert hosted(server).aggregator is None


async def test_a_round_waits_without_a_thread_or_a_lock() -> None:
    async with trainers(2, tc.policies.Sync(2)) as (server, (one, other)):
        first = asyncio.create_task(one.step(batches(1)[0]))
        await until(lambda: waiting(server) == 1)
        assert server.engine.compute.waiting == 0
        # Forwards, state and options go on meanwhile.
        await asyncio.gather(one.net(batches(1)[0]), other.opt.set_options(lr=0.2), other.opt.state_dict())
        assert not first.done()
        assert (await other.step(batches(1)[0])).counted == (await first).counted == 2


@pytest.mark.parametrize("policy", [tc.policies.Sync(4), tc.policies.BoundedStaleness(0)], ids=str)
async def test_more_trainers_wait_than_there_are_threads(policy: tc.policies.Policy) -> None:
    async with trainers(4, policy, threads=1) as (server, group):
        for _ in range(12):  # steps become short enough for the event loop, where no reply can be deferred
            await asyncio.gather(*(each.step(batches(1)[0]) for each in group))
        assert hosted(server).version == (12 if isinstance(policy, tc.policies.Sync) else 48)


async def test_a_step_that_waits_can_be_cancelled() -> None:
    async with trainers(3, tc.policies.Sync(2)) as (server, (one, two, three)):
        first = asyncio.create_task(one.step(batches(1)[0]))
        await until(lambda: waiting(server) == 1)
        first.cancel()
        await until(lambda: waiting(server) == 0)
        net, opt = await local(two)
        xs = batches(2)
        await asyncio.gather(two.step(xs[0]), three.step(xs[1]))
        learn(net, opt, torch.cat(xs))
        await same_state(two.net, net)


async def test_a_trainer_that_closes_blocks_no_round() -> None:
    async with trainers(3, tc.policies.Sync(3)) as (server, (one, two, three)):
        waits = [asyncio.create_task(each.step(batches(1)[0])) for each in (one, two)]
        await until(lambda: waiting(server) == 2)
        await three.client.close()
        assert [each.counted for each in await asyncio.gather(*waits)] == [2, 2]


async def test_a_trainer_that_leaves_blocks_no_round_and_may_come_back() -> None:
    async with trainers(2, tc.policies.Sync()) as (server, (one, other)):
        first = asyncio.create_task(one.step(batches(1)[0]))
        await until(lambda: waiting(server) == 1)
        await other.opt.leave()
        assert (await first).counted == 1
        second = asyncio.create_task(other.step(batches(1)[0]))
        await until(lambda: waiting(server) == 1)
        assert (await one.step(batches(1)[0])).counted == (await second).counted == 2


async def test_the_error_of_a_time_out_names_the_trainer_it_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async with trainers(2, tc.policies.Sync(2)) as (server, (one, other)):
        # By default a little less than the time-out of the call, which a loaded machine may miss.
        monkeypatch.setattr(parts, "owner_seconds", lambda seconds: 0.2)
        session = server.engine.sessions.describe(other.client.trainer)
        waits = r"the optimizer '.*\.optimizer' on owner 'ps0' with the policy Sync\(.*\) has waited 0\.2 s for trainer"
        with pytest.raises(tc.errors.DeadlineExceededError, match=waits) as raised:
            await one.step(batches(1)[0])
        assert session in str(raised.value) and "do not count (withdrawn)" in str(raised.value)
        assert waiting(server) == 0
        monkeypatch.undo()
        found = await asyncio.gather(one.step(batches(1)[0]), other.step(batches(1)[0]))
        assert [each.counted for each in found] == [2, 2]


@pytest.mark.parametrize("members", [1, 2])
async def test_a_step_that_waits_says_for_whom_while_it_waits(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, members: int
) -> None:
    monkeypatch.setattr(waits, "_SECONDS", 0.1)
    async with trainers(members, tc.policies.Sync(2)) as (server, (one, *others)):
        late = [server.engine.sessions.describe(other.client.trainer) for other in others] or ["more trainers to join"]
        step = asyncio.create_task(one.step(batches(1)[0]))
        await until(lambda: "waits for" in caplog.text, 0.01)
        (told,) = [each for each in caplog.records if "waits for" in each.getMessage()]
        assert (told.levelname, told.name.partition(".")[0]) == ("WARNING", "trainer_client")
        assert f"with the policy {tc.policies.Sync(2)} waits for {late[0]}" in told.getMessage()
        step.cancel()
        with pytest.raises(asyncio.CancelledError):
            await step


async def test_bounded_staleness_holds_back_the_fast() -> None:
    async with trainers(2, tc.policies.BoundedStaleness(1)) as (server, (fast, slow)):
        x = batches(1)[0]
        assert (await fast.step(x)) == {"ps0": 1}
        ahead = asyncio.create_task(fast.step(x))
        await until(lambda: hosted(server).version == 2)
        late = server.engine.sessions.describe(slow.client.trainer)
        assert not ahead.done() and hosted(server).aggregator.missing(16) == [late]
        assert (await slow.step(x)) == {"ps0": 3}
        assert (await ahead) == {"ps0": 2}


async def test_a_quorum_of_any_steps_after_that_many_gradients_and_nobody_waits() -> None:
    async with trainers(2, tc.policies.Quorum(4)) as (server, group):
        net, opt = await local(group[0])
        xs = batches(4)
        for position, x in enumerate(xs):
            found = await group[position % 2].step(x)
            assert (found.counted, found["ps0"]) == ((4, 1) if position == 3 else (0, 0))
        assert hosted(server).version == 1
        learn(net, opt, torch.cat(xs))
        await same_state(group[0].net, net)


async def test_late_gradients_of_a_quorum_are_dropped_and_said() -> None:
    async with trainers(3, tc.policies.Quorum(2, of=3)) as (_, (one, two, late)):
        async with late.client.context() as ctx:
            await ctx.backward((await late.net(batches(1)[0])).square().mean())
            await asyncio.gather(one.step(batches(1)[0]), two.step(batches(1)[0]))
            before = await late.net.state_dict()
            found = await late.opt.step(ctx)
        assert (found.dropped, found.staleness, found.counted) == ("late", 1, 0)
        for name, value in (await late.net.state_dict()).items():
            assert torch.equal(value, before[name])


STALE = [(tc.policies.Apply(), 1.0), (tc.policies.Scale(), 0.5), (tc.policies.Reject(1), 0.0)]


@pytest.mark.parametrize(("stale", "weight"), STALE, ids=["apply", "scale", "reject"])
async def test_a_stale_gradient_counts_as_the_policy_says(stale: tc.Stale, weight: float) -> None:
    async with trainers(2, tc.policies.Async(stale)) as (_, (slow, fast)):
        x = batches(1)[0]
        net, opt = await local(slow)
        loss = net(x).square().mean()
        gradients = torch.autograd.grad(loss, list(net.parameters()))
        async with slow.client.context() as ctx:
            await ctx.backward((await slow.net(x)).square().mean())
            for _ in range(2):
                await fast.step(x)
                learn(net, opt, x)
            found = await slow.opt.step(ctx)
        assert (found.staleness, found.dropped) == (2, "" if weight else "stale")
        if weight:
            for parameter, gradient in zip(net.parameters(), gradients, strict=True):
                parameter.grad = gradient * weight
            opt.step()
        await same_state(slow.net, net)


async def test_a_stale_gradient_is_compensated() -> None:
    async with trainers(2, tc.policies.Async(tc.policies.Compensate(0.5))) as (_, (slow, fast)):
        x = batches(1)[0]
        net, opt = await local(slow)
        then = [parameter.detach().clone() for parameter in net.parameters()]
        gradients = torch.autograd.grad(net(x).square().mean(), list(net.parameters()))
        async with slow.client.context() as ctx:
            await ctx.backward((await slow.net(x)).square().mean())
            await fast.step(x)
            learn(net, opt, x)
            await slow.opt.step(ctx)
        for parameter, gradient, old in zip(net.parameters(), gradients, then, strict=True):
            parameter.grad = gradient + 0.5 * gradient * gradient * (parameter.detach() - old)
        opt.step()
        await same_state(slow.net, net)


async def test_the_policy_changes_while_trainers_wait() -> None:
    async with trainers(2, tc.policies.Sync(2)) as (server, (one, other)):
        first = asyncio.create_task(one.step(batches(1)[0]))
        await until(lambda: waiting(server) == 1)
        await other.opt.set_policy(tc.policies.Async())
        assert (await first).counted == 1
        assert (await other.step(batches(1)[0])) == {"ps0": 2}
        await one.opt.set_policy(tc.policies.Sync(2))
        assert len(set(map(repr, await asyncio.gather(one.step(batches(1)[0]), other.step(batches(1)[0]))))) == 1


async def test_a_change_of_the_policy_is_there_once_the_step_of_the_open_round_is_applied(
    request: pytest.FixtureRequest,
) -> None:
    what = request.node.name
    async with owners("ps0") as (server,), tc.connect(server.address) as client:
        net = await client.module("torch.nn.Linear", 3, 2)
        opt = await client.optimizer(Pausing, net.parameters(), lr=0.1, what=what, policy=tc.policies.Quorum(2))
        one = Trainer(client, net, opt)
        assert (await one.step(batches(1)[0])).counted == 0
        changed = opt.set_policy(tc.policies.Sync())
        assert await asyncio.to_thread(autograd_models.event(f"{what} has begun").wait, autograd_models.PATIENCE)
        await opt.values()
        assert not changed.settled and hosted(server).version == 0
        autograd_models.event(f"{what} may go on").set()
        await changed
        assert hosted(server).version == 1


async def test_who_comes_later_may_leave_the_policy_out_but_not_change_it() -> None:
    async with trainers(1, tc.policies.Sync(2)) as (server, (one,)), tc.connect(server.address) as ps:
        net = await ps.module("torch.nn.Linear", 3, 2, name="net", seed=1)
        opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1, momentum=0.9)
        with pytest.raises(
            tc.errors.NameConflictError, match=r"with the policy Sync\(trainers=2.*, not Async\(.*set_policy"
        ):
            await ps.optimizer(optim.SGD, net.parameters(), lr=0.1, momentum=0.9, policy=tc.policies.Async())
        other = Trainer(ps, net, opt)
        assert (await asyncio.gather(one.step(batches(1)[0]), other.step(batches(1)[0])))[0].counted == 2


async def test_a_gradient_that_the_optimizer_refuses_enters_no_round() -> None:
    async with trainers(2, tc.policies.Sync(2), non_finite="refuse") as (server, (one, other)):
        with pytest.raises(tc.errors.NonFiniteGradientError):
            await one.step(torch.full((4, 3), float("nan")))
        assert waiting(server) == 0
        found = await asyncio.gather(one.step(batches(1)[0]), other.step(batches(1)[0]))
        assert [each.counted for each in found] == [2, 2]


async def test_status_names_those_a_round_waits_for() -> None:
    async with trainers(2, tc.policies.Sync(2)) as (server, (one, other)):
        first = asyncio.create_task(one.step(batches(1)[0]))
        await until(lambda: waiting(server) == 1)
        (told,) = (await other.client.status("ps0")).optimizers
        assert (told.members, told.policy) == (2, "Sync(trainers=2, reduce='mean')")
        assert [other.client.trainer.hex().startswith(each[:8]) for each in told.waiting_for] == [True]
        first.cancel()
