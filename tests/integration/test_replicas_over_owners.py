"""Tests of one push for replicas of several modules and owners: one step, in the same round on all owners."""

from __future__ import annotations

import asyncio
import gc
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn, optim

import trainer_client as tc
from ps_wire.codec.payload import PayloadReader
from ps_wire.compression.choice import Choice
from tests.integration.replicas_over_owners import batches, begun, learn, local, pushers, same_everywhere
from tests.integration.spanning import held, hosted, waiting
from tests.training import owners
from tests.waiting import until

PLACES = [("ps0", "ps1"), ("ps0", "ps0"), ("ps0", "ps1", "ps0", "ps2")]


@pytest.mark.parametrize(
    ("policy", "places"),
    [
        *((None, places) for places in PLACES[:2]),
        (tc.policies.Sync(1), PLACES[1]),
        (tc.policies.BoundedStaleness(3), PLACES[2]),
        (tc.policies.Quorum(1, of=1), PLACES[0]),
    ],
    ids=str,
)
async def test_pushes_train_like_local_torch(policy: tc.policies.Policy | None, places: tuple[str, ...]) -> None:
    async with pushers(1, policy, places) as (servers, (one,)):
        net, opt = local(one)
        for step, x in enumerate(batches(3)):
            found = await one.step(x)
            assert found == {server.engine.name: step + 1 for server in servers}
            assert found is not None and (found.staleness, found.counted, found.dropped) == (0, 1, "")
            assert all(each.grad is None for each in one.model.parameters())
            learn(net, opt, x)
            await same_everywhere(one, net)
        assert await one.model.pull() == 0
        await until(lambda: not any(len(server.engine.contexts) for server in servers))


@pytest.mark.parametrize(("policy", "reduce"), [("sync", "mean"), ("quorum", "sum")])
async def test_rounds_of_three_trainers_equal_one_process_with_the_whole_batch(policy: str, reduce: str) -> None:
    made: tc.policies.Policy = (
        tc.policies.Sync(3, reduce) if policy == "sync" else tc.policies.Quorum(3, of=3, reduce=reduce)
    )  # type: ignore[arg-type]
    async with pushers(3, made) as (servers, group):
        net, opt = local(group[0])
        for step in range(3):
            xs = batches(3, step)
            found = await asyncio.gather(*(each.step(x) for each, x in zip(group, xs, strict=True)))
            assert found == [{"ps0": step + 1, "ps1": step + 1}] * 3
            assert [(each.staleness, each.counted) for each in found if each is not None] == [(0, 3)] * 3
            learn(net, opt, torch.cat(xs), 3.0 if reduce == "sum" else 1.0)
            # No other step may come between: every trainer has the parameters of this round from every owner.
            for each in group:
                await same_everywhere(each, net)
        assert held(servers[1]) == 0


@pytest.mark.parametrize(
    "policy",
    [tc.policies.BoundedStaleness(2), tc.policies.Async(tc.policies.Scale())],
    ids=str,
)
async def test_all_owners_take_the_same_gradients_in_the_same_order(policy: tc.policies.Policy) -> None:
    async with pushers(3, policy) as (servers, group):
        for step in range(4):
            await asyncio.gather(*(each.step(x) for each, x in zip(group, batches(3, step), strict=True)))
        await asyncio.gather(*(each.model.pull() for each in group))
        assert [hosted(server).version for server in servers] == [12, 12]
        snapshots = [hosted(server).counter.snapshot() for server in servers]
        assert snapshots[0].steps == snapshots[1].steps == 12 and held(servers[1]) == 0


async def test_staleness_is_that_of_the_parameters_that_were_pulled() -> None:
    async with pushers(2, tc.policies.Async(tc.policies.Reject(1))) as (servers, (slow, fast)):
        slow.model(torch.ones(1, 3)).square().mean().backward()
        for x in batches(2):
            assert (await fast.step(x)).staleness == 0  # type: ignore[union-attr]
        before = [bits.clone() for bits in slow.model.parameters()]
        found = await slow.model.push(slow.opt, pull=False)
        assert found is not None and (found.dropped, found.staleness, found.counted) == ("stale", 2, 0)
        assert all(torch.equal(*pair) for pair in zip(before, slow.model.parameters(), strict=True))
        assert await slow.model.pull() == 4
        assert [hosted(server).version for server in servers] == [2, 2]


async def test_a_round_that_is_not_complete_holds_nothing_of_a_push_that_is_cancelled() -> None:
    async with pushers(2, tc.policies.Sync(2)) as (servers, (one, two)):
        net, opt = local(one)
        one.model(batches(1)[0]).square().mean().backward()
        pending = one.model.push(one.opt)
        await until(lambda: waiting(servers[0]) == 1 and held(servers[1]) == 1)
        pending.cancel()
        await until(lambda: waiting(servers[0]) == 0 and held(servers[1]) == 0)
        await until(lambda: not any(len(server.engine.contexts) for server in servers))
        xs = batches(2)
        await asyncio.gather(one.step(xs[0]), two.step(xs[1]))
        learn(net, opt, torch.cat(xs))
        await same_everywhere(one, net)


@pytest.mark.parametrize("policy", [None, tc.policies.Sync(2)], ids=str)
async def test_gradients_that_one_owner_refuses_change_nothing_anywhere(policy: tc.policies.Policy | None) -> None:
    async with pushers(2, policy, non_finite="refuse") as (servers, (one, two)):
        before = [each.clone() for each in one.model.parameters()]
        one.model(torch.ones(1, 3)).sum().backward()
        list(one.model.parameters())[-1].grad.fill_(float("nan"))  # type: ignore[union-attr]
        with pytest.raises(tc.errors.NonFiniteGradientError):
            await one.model.push(one.opt)
        assert [hosted(server).version for server in servers] == [0, 0]
        assert await one.model.pull() == 0
        assert all(torch.equal(*pair) for pair in zip(before, one.model.parameters(), strict=True))
        await until(lambda: held(servers[1]) == 0 if policy else True)
        found = await asyncio.gather(one.step(batches(1)[0]), two.step(batches(1)[0]))
        assert all(each is not None and each.counted == (2 if policy else 1) for each in found)


@pytest.mark.parametrize("policy", [None, tc.policies.Sync(1)], ids=str)
async def test_what_codecs_leave_out_is_restored_when_one_owner_refuses(policy: tc.policies.Policy | None) -> None:
    more: Any = {"non_finite": "refuse", "compress": Choice(tc.codecs.TopK(0.3), min_numel=0)}
    async with pushers(1, policy, ("ps0", "ps1", "ps1"), **more) as (servers, (one,)):
        await one.step(batches(1)[0])
        kept = [[*each._feedback._kept.items()] for each in one.model._exchanges]
        residuals = [[(name, each.residual.clone()) for name, each in part] for part in kept]
        one.model(torch.ones(1, 3)).sum().backward()
        # Encoded without a codec, so that the owner refuses it.
        one.model._exchanges[2]._feedback = None
        list(one.model.parameters())[-1].grad.fill_(float("nan"))  # type: ignore[union-attr]
        with pytest.raises(tc.errors.NonFiniteGradientError):
            await one.model.push(one.opt)
        for each, expected in zip(one.model._exchanges[:2], residuals, strict=False):
            for name, residual in expected:
                assert torch.equal(each._feedback.residual(name), residual)
        assert [hosted(server).version for server in servers] == [1, 1]


async def test_a_scaler_decides_for_all_replicas_and_clipping_sees_all() -> None:
    async with pushers(1) as (servers, (one,)):
        net, opt = local(one)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        x = batches(1)[0]
        for factor, steps in ((1.0, True), (float("inf"), False)):
            scaler.scale(one.model(x).square().mean() * factor).backward()
            one.model.unscale_(scaler)
            nn.utils.clip_grad_norm_(one.model.parameters(), 0.1)
            assert (await one.model.push(one.opt, scaler=scaler) is not None) == steps
            scaler.update()
        net(x).square().mean().backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.1)
        opt.step()
        await same_everywhere(one, net)
        assert [hosted(server).version for server in servers] == [1, 1] and scaler.get_scale() == 4.0


@pytest.mark.parametrize("policy", [None, tc.policies.Sync(1)], ids=str)
async def test_overlapping_pushes_take_their_parameters_over_when_they_are_awaited(
    policy: tc.policies.Policy | None,
) -> None:
    async with pushers(1, policy, overlap=1) as (servers, (one,)):
        x = batches(1)[0]
        before = [each.clone() for each in one.model.parameters()]
        assert await one.step(x) is None
        await until(lambda: all(hosted(server).version == 1 for server in servers))
        await until(lambda: not any(len(server.engine.contexts) for server in servers))
        # The answer is here or on its way, and a forward may run.
        assert all(torch.equal(*pair) for pair in zip(before, one.model.parameters(), strict=True))
        found = await one.step(x)
        assert found == {"ps0": 1, "ps1": 1}
        assert not any(torch.equal(*pair) for pair in zip(before, one.model.parameters(), strict=True))
        (last,) = await one.model.finish()
        assert last == {"ps0": 2, "ps1": 2} and last is not None and last.staleness == 1


async def test_two_replicas_of_one_module_add_their_gradients_like_tied_layers() -> None:
    async with owners("ps0") as (server,), tc.connect(server.address) as ps:
        net = await ps.module("torch.nn.Linear", 3, 3, seed=0)
        opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1, momentum=0.9)
        model = ps.replicas(nn.Sequential(await net.replica(), nn.Tanh(), await net.replica()))
        layer = nn.Linear(3, 3)
        layer.load_state_dict(await net.state_dict())
        sgd = optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
        for x in batches(3):
            model(x).square().mean().backward()
            assert await model.push(opt) == {"ps0": hosted(server).version}
            learn(nn.Sequential(layer, nn.Tanh(), layer), sgd, x)
        for part in (model.module[0], model.module[2]):
            for mine, wanted in zip(part.parameters(), layer.parameters(), strict=True):
                torch.testing.assert_close(mine, wanted)
        assert hosted(server).version == 3


async def test_what_is_local_in_the_model_stays_local_and_kept_gradients_are_copied() -> None:
    async with pushers(1) as (_, (one,)):
        model = one.client.replicas(nn.Sequential(one.model.module, nn.Linear(3, 1)))
        tail = model.module[1]
        for step in range(2):
            model.zero_grad()
            model(torch.ones(1, 3)).square().mean().backward()
            assert await model.push(one.opt, zero_grad=step == 1) is not None
            kept = [each.grad is not None for each in model.parameters()]
            assert kept == ([True] * 6 if step == 0 else [False] * 4 + [True] * 2)
        assert tail.weight.grad is not None


async def test_a_plain_program_pushes_to_several_owners() -> None:
    async with owners("ps0", "ps1") as servers:

        def train(addresses: list[str]) -> list[Any]:
            with tc.connect(*addresses) as ps:
                nets = [ps.module("torch.nn.Linear", 3, 3, seed=0, owner=name) for name in ("ps0", "ps1")]
                opt = ps.optimizer(
                    optim.SGD, [*nets[0].parameters(), *nets[1].parameters()], lr=0.1, policy=tc.policies.Sync(1)
                )
                model = ps.replicas(nn.Sequential(*(net.replica() for net in nets)))
                model(torch.ones(1, 3)).sum().backward()
                return [model.push(opt), model.pull(), model.finish(), isinstance(model, tc.Replicas)]

        found = await asyncio.to_thread(train, [each.address for each in servers])
        assert found == [{"ps0": 1, "ps1": 1}, 0, [], True]


async def test_what_cannot_be_pushed_together_is_refused() -> None:
    async with pushers(1) as (_, (one,)):
        ps, (tower, head), replica = one.client, one.nets, await one.nets[0].replica()
        with pytest.raises(tc.errors.InvalidArgumentError, match="no replica in this module"):
            ps.replicas(nn.Linear(2, 2))
        other = await tower.replica()
        other.module.weight = replica.module.weight
        other.exchange.tensors.parameters[0] = replica.module.weight
        with pytest.raises(tc.errors.InvalidArgumentError, match="share a parameter"):
            ps.replicas(nn.Sequential(replica, other))
        with pytest.raises(tc.errors.InvalidArgumentError, match="overlap is a number"):
            ps.replicas(replica, overlap=-1)
        only = await ps.optimizer(optim.SGD, tower.parameters(), lr=0.1, name="only")
        mixed = await ps.optimizer(
            optim.SGD, [*tower.parameters(), *head.parameters(), nn.Parameter(torch.ones(1))], lr=0.1, name="mixed"
        )
        one.model(torch.ones(1, 3)).sum().backward()
        for opt in (only, mixed):
            with pytest.raises(tc.errors.InvalidArgumentError, match="does not step all replicas"):
                one.model.push(opt)
        assert all(each.grad is not None for each in one.model.parameters())
        # An optimizer of something else on the owner of the head.
        layer = await ps.module("torch.nn.Linear", 2, 2, owner="ps1")
        elsewhere = await ps.optimizer(optim.SGD, [*tower.parameters(), *layer.parameters()], lr=0.1, name="elsewhere")
        with pytest.raises(tc.errors.InvalidArgumentError, match="steps no parameter of"):
            await one.model.push(elsewhere)
        assert await one.model.pull() == 0


async def test_a_later_trainer_joins_while_others_wait() -> None:
    async with (
        pushers(1, tc.policies.Sync(2)) as (servers, (one,)),
        tc.connect(*(each.address for each in servers)) as ps,
    ):
        first = asyncio.create_task(one.step(batches(1)[0]))
        await until(lambda: waiting(servers[0]) == 1)
        other = await begun(ps, ("ps0", "ps1"))
        assert await other.step(batches(1)[0]) == await first == {"ps0": 1, "ps1": 1}


async def test_pushes_take_part_in_rounds_that_another_trainer_has_begun() -> None:
    async with pushers(2) as (servers, (one, two)):
        net, opt = local(one)
        await two.opt.set_policy(tc.policies.Sync(2))
        for step in range(2):
            xs = batches(2, step)
            found = await asyncio.gather(one.step(xs[0]), two.step(xs[1]))
            assert found == [{"ps0": step + 1, "ps1": step + 1}] * 2
            learn(net, opt, torch.cat(xs))
            await same_everywhere(one, net)
            await same_everywhere(two, net)
        assert held(servers[1]) == 0


async def test_a_push_whose_result_nobody_reads_keeps_no_parameters() -> None:
    async with owners("ps0", "ps1") as servers, tc.connect(*(each.address for each in servers)) as ps:
        one, other = [await ps.module(nn.Linear, 64, 64, owner=name) for name in ("ps0", "ps1")]
        opt = await ps.optimizer(optim.SGD, [*one.parameters(), *other.parameters()], lr=0.1)
        replica = await one.replica()
        async with ps.context() as ctx:
            await ctx.backward(replica(await other(torch.ones(1, 64))).sum())
            await until(partial(getattr, replica.push(opt, context=ctx), "settled"))
        del ctx

        def answers() -> int:
            gc.collect()
            return sum(each.nbytes for each in gc.get_objects() if type(each) is PayloadReader)

        await until(lambda: answers() == 0)
