"""Tests of policies over several real owners: all of them take the same gradients in the same round."""

from __future__ import annotations

import asyncio

import pytest
import torch
from torch import nn, optim

import trainer_client as tc
from tests.integration.spanning import batches, begun, held, hosted, local, same_nets, together, trainers, waiting
from tests.training import apart
from tests.waiting import until
from trainer_client.optimizers import parts


def learn(net: nn.Module, opt: optim.Optimizer, x: torch.Tensor, factor: float = 1.0) -> None:
    opt.zero_grad()
    (net(x).square().mean() * factor).backward()
    opt.step()


@pytest.mark.parametrize(("places", "reduce", "joined"), [(2, "mean", True), (3, "sum", False)])
async def test_sync_steps_are_those_of_one_process_with_the_whole_batch(places: int, reduce: str, joined: bool) -> None:
    async with trainers(3, tc.policies.Sync(3, reduce), places) as (servers, group):  # type: ignore[arg-type]
        net, opt = await local(group[0])
        for xs in (batches(3), batches(6)[3:], batches(9)[6:]):
            found = await together(*(each.step(x, joined) for each, x in zip(group, xs, strict=True)))
            learn(net, opt, torch.cat(xs), 3.0 if reduce == "sum" else 1.0)
            await same_nets(group[0], net)
        assert found == [{server.engine.name: 3 for server in servers}] * 3
        assert [(each.staleness, each.counted, each.dropped) for each in found] == [(0, 3, "")] * 3
        assert not any(held(server) for server in servers[1:])


@pytest.mark.parametrize(
    "policy",
    [
        tc.policies.BoundedStaleness(8),
        tc.policies.Async(tc.policies.Scale()),
        tc.policies.Async(tc.policies.Compensate(0.1)),
        tc.policies.Quorum(1, of=1),
    ],
    ids=str,
)
async def test_one_trainer_alone_trains_as_locally_under_every_policy(policy: tc.policies.Policy) -> None:
    async with trainers(1, policy) as (_, (one,)):
        net, opt = await local(one)
        for x in batches(3):
            assert (await one.step(x)).counted == 1
            learn(net, opt, x)
        await same_nets(one, net)


@pytest.mark.parametrize(
    "policy",
    [
        tc.policies.BoundedStaleness(2),
        tc.policies.Async(tc.policies.Scale()),
        tc.policies.Quorum(3, of=3),
    ],
    ids=str,
)
async def test_all_owners_have_made_the_same_steps(policy: tc.policies.Policy) -> None:
    async with trainers(3, policy, 3) as (servers, group):
        for seed in range(1, 3):
            await together(*(each.step(x) for each, x in zip(group, batches(3 * seed)[-3:], strict=True)))
        # Each trainer brings what was decided by then.
        assert len({hosted(server).version for server in servers}) == 1
        assert not any(held(server) for server in servers[1:])


@pytest.mark.parametrize("ahead", [0, 3])
async def test_a_stale_gradient_is_compensated_on_all_owners(ahead: int) -> None:
    x = 3 * batches(1)[0]
    async with trainers(2, None, momentum=0.0) as (servers, (slow, fast)):
        for _ in range(ahead):  # without a gradient on the first owner
            async with fast.client.context() as ctx:
                await ctx.backward((await fast.nets[1](x)).square().mean(), step=fast.opt)
        assert [hosted(server).version for server in servers] == [0, ahead]
        await slow.opt.set_policy(tc.policies.Async(tc.policies.Compensate(0.5)))
        net, _ = await local(slow)
        opt = optim.SGD(net.parameters(), lr=0.1)
        await fast.step(x)
        learn(net, opt, x)
        then = [parameter.detach().clone() for parameter in net.parameters()]
        gradients = torch.autograd.grad(net(x).square().mean(), list(net.parameters()))
        async with slow.client.context() as ctx:
            await ctx.backward(await slow.loss(x))
            await fast.step(x)
            learn(net, opt, x)
            await slow.opt.step(ctx)
        for parameter, gradient, old in zip(net.parameters(), gradients, then, strict=True):
            parameter.grad = gradient + 0.5 * gradient * gradient * (parameter.detach() - old)
        opt.step()
        await same_nets(slow, net)


async def test_the_first_gradient_of_all_is_compensated_on_all_owners() -> None:
    """The other owners hear of the rounds with it; they have known the policy since the optimizer was made."""
    x = 3 * batches(1)[0]
    async with trainers(1, tc.policies.Async(tc.policies.Compensate(0.5)), momentum=0.0) as (_, (one,)):
        others = [
            await one.client.optimizer(optim.SGD, each.parameters(), name=each.owner, lr=0.1) for each in one.nets
        ]
        net, _ = await local(one)
        opt = optim.SGD(net.parameters(), lr=0.1)
        then = [parameter.detach().clone() for parameter in net.parameters()]
        gradients = torch.autograd.grad(net(x).square().mean(), list(net.parameters()))

        async def between() -> None:
            async with one.client.context() as ctx:
                await ctx.backward(await one.loss(x), step=others)

        async with one.client.context() as ctx:
            await ctx.backward(await one.loss(x))
            for _ in range(3):
                await apart(between())
                learn(net, opt, x)
            await one.opt.step(ctx)
        for parameter, gradient, old in zip(net.parameters(), gradients, then, strict=True):
            parameter.grad = gradient + 0.5 * gradient * gradient * (parameter.detach() - old)
        opt.step()
        await same_nets(one, net)


async def test_a_quorum_of_any_keeps_sums_of_its_open_round() -> None:
    async with trainers(2, tc.policies.Quorum(4)) as (servers, group):
        net, opt = await local(group[0])
        xs = batches(4)
        for position, x in enumerate(xs):
            assert (await group[position % 2].step(x)).counted == (4 if position == 3 else 0)
            assert held(servers[1]) == 0
        assert all(hosted(server).version == 1 for server in servers)
        learn(net, opt, torch.cat(xs))
        await same_nets(group[0], net)


async def test_a_trainer_that_closes_between_the_phases_blocks_and_splits_no_round() -> None:
    async with trainers(3, tc.policies.Sync(3)) as (servers, (one, two, three)):
        net, opt = await local(one)
        xs = batches(3)
        lost = asyncio.create_task(three.step(xs[2]))
        await until(lambda: waiting(servers[0]) == 1)
        assert held(servers[1]) == 1
        await three.client.close()
        with pytest.raises(tc.PsError):
            await lost
        found = await together(one.step(xs[0]), two.step(xs[1]))
        assert [each.counted for each in found] == [2, 2]
        learn(net, opt, torch.cat(xs[:2]))
        await same_nets(one, net)
        assert held(servers[1]) == 0


@pytest.mark.parametrize("policy", [tc.policies.Async(), tc.policies.Async(tc.policies.Reject(9))], ids=str)
async def test_a_decided_round_reaches_all_owners_with_the_next_step_of_any_trainer(policy: tc.policies.Policy) -> None:
    async with trainers(2, policy) as (servers, (one, two)):
        net, opt = await local(one)
        xs = batches(2)
        (part,) = one.opt._rounds._followers.values()  # type: ignore[union-attr]
        part.settle = None  # type: ignore[assignment,method-assign]  # it dies before it can tell
        with pytest.raises(TypeError):
            await one.step(xs[0])
        await one.client.close()
        assert [hosted(server).version for server in servers] == [1, 0] and held(servers[1]) == 1
        learn(net, opt, xs[0])
        await two.step(xs[1])
        assert [hosted(server).version for server in servers] == [2, 2] and held(servers[1]) == 0


async def test_an_optimizer_without_a_policy_is_not_taken_for_one_that_keeps_owners_together() -> None:
    async with trainers(2, None) as (servers, (one, two)):
        parameters = [parameter for net in two.nets for parameter in net.parameters()]
        with pytest.raises(tc.errors.NameConflictError, match=r"without a policy.*set_policy"):
            await two.client.optimizer(optim.SGD, parameters, policy=tc.policies.Async(), lr=0.1, momentum=0.9)
        await one.opt.set_policy(tc.policies.Async())
        await two.client.optimizer(optim.SGD, parameters, policy=tc.policies.Async(), lr=0.1, momentum=0.9)
        assert all(hosted(server).rounds is not None for server in servers)


async def test_a_step_that_waits_can_be_cancelled() -> None:
    async with trainers(3, tc.policies.Sync(2)) as (servers, (one, two, three)):
        first = asyncio.create_task(one.step(batches(1)[0]))
        await until(lambda: waiting(servers[0]) == 1)
        first.cancel()
        await until(lambda: waiting(servers[0]) == 0 and held(servers[1]) == 0)
        net, opt = await local(two)
        xs = batches(2)
        await together(two.step(xs[0]), three.step(xs[1]))
        learn(net, opt, torch.cat(xs))
        await same_nets(two, net)


async def test_a_trainer_that_leaves_blocks_no_round_and_may_come_back() -> None:
    async with trainers(2, tc.policies.Sync()) as (servers, (one, other)):
        first = asyncio.create_task(one.step(batches(1)[0]))
        await until(lambda: waiting(servers[0]) == 1)
        await other.opt.leave()
        assert (await first).counted == 1
        second = asyncio.create_task(other.step(batches(1)[0]))
        await until(lambda: waiting(servers[0]) == 1)
        assert (await one.step(batches(1)[0])).counted == (await second).counted == 2
        assert held(servers[1]) == 0


@pytest.mark.parametrize("place", [0, 1])
async def test_a_gradient_that_one_owner_refuses_enters_no_round(place: int) -> None:
    async with trainers(2, tc.policies.Sync(2), non_finite="refuse") as (servers, (one, other)):
        async with one.client.context() as ctx:
            x = batches(1)[0]
            net = one.nets[place]
            await ctx.backward((await net(x)).mul(float("inf")).mean())
            with pytest.raises(tc.errors.NonFiniteGradientError):
                await one.opt.step(ctx)
        await until(lambda: waiting(servers[0]) == 0 and held(servers[1]) == 0)
        found = await together(one.step(x), other.step(x))
        assert [each.counted for each in found] == [2, 2]


async def test_the_error_of_a_time_out_names_the_trainer_it_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async with trainers(2, tc.policies.Sync(2)) as (servers, (one, other)):
        # By default a little less than the time-out of the call, which a loaded machine may miss.
        monkeypatch.setattr(parts, "owner_seconds", lambda seconds: 0.2)
        session = servers[0].engine.sessions.describe(other.client.trainer)
        with pytest.raises(tc.errors.DeadlineExceededError, match=r"has waited 0\.2 s for trainer") as raised:
            await one.step(batches(1)[0])
        assert session in str(raised.value)
        monkeypatch.undo()
        await until(lambda: held(servers[1]) == 0)


async def test_the_policy_changes_on_all_owners_while_trainers_wait() -> None:
    async with trainers(2, tc.policies.Sync(2)) as (servers, (one, other)):
        first = asyncio.create_task(one.step(batches(1)[0]))
        await until(lambda: waiting(servers[0]) == 1)
        await other.opt.set_policy(tc.policies.Async())
        assert (await first).counted == 1
        assert (await other.step(batches(1)[0])) == {"ps0": 2, "ps1": 2}
        assert [(await one.client.status(name)).optimizers[0].policy for name in ("ps0", "ps1")] == [
            str(tc.policies.Async())
        ] * 2


async def test_status_names_those_a_round_waits_for() -> None:
    async with trainers(2, tc.policies.Sync(2)) as (servers, (one, other)):
        first = asyncio.create_task(one.step(batches(1)[0]))
        await until(lambda: waiting(servers[0]) == 1)
        (told,) = (await other.client.status("ps0")).optimizers
        assert [other.client.trainer.hex().startswith(each[:8]) for each in told.waiting_for] == [True]
        first.cancel()


async def test_who_comes_later_may_leave_the_policy_out_but_not_change_it_or_its_owners() -> None:
    async with (
        trainers(1, tc.policies.Sync(2)) as (servers, (one,)),
        tc.connect(*(each.address for each in servers)) as ps,
    ):
        with pytest.raises(tc.errors.NameConflictError, match="policy"):
            await begun(ps, ["ps0", "ps1"], tc.policies.Sync(3))
        with pytest.raises(tc.errors.NameConflictError, match="on ps0 and ps1"):
            await begun(ps, ["ps0"], None)
        other = await begun(ps, ["ps0", "ps1"], None)
        found = await together(one.step(batches(1)[0]), other.step(batches(1)[0]))
        assert [each.counted for each in found] == [2, 2]


async def test_an_optimizer_with_a_policy_has_no_local_parameters() -> None:
    refused = (
        "an optimizer with a policy has all of its parameters on owners, and none here: leave out the tensors of this "
        "process, and step them with an optimizer of torch"
    )
    async with trainers(1, None) as (_, (one,)):
        parameters = [*one.nets[0].parameters(), nn.Parameter(torch.zeros(3))]
        with pytest.raises(tc.errors.InvalidArgumentError) as caught:
            await one.client.optimizer(optim.SGD, parameters, lr=0.1, policy=tc.policies.Sync(2))
        assert str(caught.value) == refused
    async with trainers(1, tc.policies.Sync(1)) as (_, (one,)):
        parameters = [each for net in one.nets for each in net.parameters()]
        with pytest.raises(tc.errors.InvalidArgumentError) as caught:
            await one.client.optimizer(optim.SGD, [*parameters, nn.Parameter(torch.zeros(3))], lr=0.1, momentum=0.9)
        assert str(caught.value) == f"this optimizer was made with a policy: {refused}"


async def test_a_scaler_works_with_rounds() -> None:
    async with trainers(1, tc.policies.Sync(1)) as (servers, (one,)):
        net, opt = await local(one)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        x = batches(1)[0]
        async with one.client.context() as ctx:
            await ctx.backward(scaler.scale(await one.loss(x)))
            assert await one.opt.step(ctx, scaler) == {"ps0": 1, "ps1": 1}
            scaler.update()
        learn(net, opt, x)
        await same_nets(one, net)
        async with one.client.context() as ctx:
            await ctx.backward((await one.loss(x)) * float("inf"))
            assert await one.opt.step(ctx, scaler) is None
        assert [hosted(server).version for server in servers] == [1, 1]
