"""Tests of the first policy of an optimizer over several owners that was made without one, while trainers use it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch
from torch import nn, optim

import trainer_client as tc
from ps_service.requests import spanning as handlers
from ps_service.training.optimizers import HostedOptimizer
from ps_wire.codec.values import Encoder
from ps_wire.policies import to_plain
from ps_wire.v1.values_pb2 import Value
from tests.integration.restarting import Owner
from tests.integration.spanning import Trainer, batches, begun, held, hosted, local, same_nets, together, trainers
from tests.training import owners
from tests.waiting import until


def learn(net: nn.Module, opt: optim.Optimizer, x: torch.Tensor) -> None:
    opt.zero_grad()
    net(x).square().mean().backward()
    opt.step()


def encoded(policy: tc.policies.Policy) -> Value:
    value = Value()
    Encoder(None).encode_into(value, to_plain(policy))
    return value


async def values(trainer: Trainer) -> list[torch.Tensor]:
    return [each for net in trainer.nets for each in (await net.state_dict()).values()]


async def test_all_trainers_take_part_in_rounds_from_their_next_step() -> None:
    async with trainers(3, None, 3) as (servers, group):
        net, opt = await local(group[0])
        for trainer, x in zip(group, batches(3), strict=True):
            await trainer.step(x)
            learn(net, opt, x)
        await group[1].opt.set_policy(tc.policies.Sync(3))
        for seed in (6, 9):
            xs = batches(seed)[-3:]
            found = await together(*(each.step(x) for each, x in zip(group, xs, strict=True)))
            learn(net, opt, torch.cat(xs))
            assert [(each.counted, each.staleness) for each in found] == [(3, 0)] * 3
            await same_nets(group[0], net)
        assert found == [{server.engine.name: 5 for server in servers}] * 3
        assert not any(held(server) for server in servers[1:])
        # It changes later as that of any other, and whoever comes now takes part.
        await group[0].opt.set_policy(tc.policies.Quorum(2, of=4, late="next"))
        other = await begun(group[0].client, [server.engine.name for server in servers], None)
        assert [each.counted for each in await together(other.step(xs[0]), group[1].step(xs[1]))] == [2, 2]


async def constant(trainer: Trainer, steps: int, answers: list[tc.Stepped]) -> None:
    """Steps whose gradients are all ones, whatever the parameters are."""
    for _ in range(steps):
        async with trainer.client.context() as ctx:
            results = await asyncio.gather(*(net(torch.ones(1, 3)) for net in trainer.nets))
            await ctx.backward(torch.stack([each.sum() for each in results]).sum())
            answers.append(await trainer.opt.step(ctx))


@pytest.mark.parametrize("seed", [0, 2])
async def test_steps_that_are_under_way_count_once_on_every_owner(seed: int) -> None:
    async with trainers(3, None, 2, lr=1.0, momentum=0.0) as (servers, group):
        before = await values(group[0])
        answers: list[tc.Stepped] = []
        training = [asyncio.create_task(constant(each, 8, answers)) for each in group]
        await until(lambda: len(answers) > 3 * seed)
        # Two at once, with different policies: one of them is last.
        first, second = tc.policies.Async(tc.policies.Reject(1000)), tc.policies.Async(tc.policies.Reject(2000))
        await together(group[0].opt.set_policy(first), group[seed].opt.set_policy(second))
        await asyncio.gather(*training)
        assert len(answers) == 24
        # A step of one of them brings what was decided to both owners.
        await constant(group[0], 1, answers)
        for now, then in zip(await values(group[0]), before, strict=True):
            torch.testing.assert_close(then - now, torch.full_like(now, 25.0))
        assert len({hosted(server).version for server in servers}) == 1 and hosted(servers[0]).version == 25
        assert not held(servers[1])


@pytest.mark.parametrize(
    ("reached", "way"), [("ps0", "step"), ("ps1", "step"), ("ps1", "with a scaler"), ("ps0", "made again")]
)
async def test_a_trainer_finishes_what_another_has_begun_and_not_ended(reached: str, way: str) -> None:
    async with trainers(2, None) as (servers, (one, two)):
        net, opt = await local(one)
        xs = batches(3)
        # As if the first trainer had died between the owners.
        await one.opt.remotes[reached].set_policy(encoded(tc.policies.Sync(1)), ["ps0", "ps1"])
        scaler = torch.amp.GradScaler("cpu", init_scale=1.0, enabled=way == "with a scaler")
        if way == "made again":
            two = await begun(two.client, ["ps0", "ps1"], None)
        for x in xs:
            async with two.client.context() as ctx:
                await ctx.backward(scaler.scale(await two.loss(x)))
                found = await two.opt.step(ctx, scaler=scaler)
                scaler.update()
            learn(net, opt, x)
            await same_nets(two, net)
        assert found == {"ps0": 3, "ps1": 3}
        assert all(str(hosted(server).aggregator.policy) == str(tc.policies.Sync(1)) for server in servers)
        assert hosted(servers[0]).aggregator.owners == hosted(servers[1]).aggregator.owners == ("ps0", "ps1")


async def test_a_trainer_with_local_parameters_is_refused_before_anything_changes() -> None:
    async with trainers(2, None) as (_, (one, two)):
        parameters = [each for net in two.nets for each in net.parameters()]
        mixed = await two.client.optimizer(optim.SGD, [*parameters, nn.Parameter(torch.zeros(3))], lr=0.1, momentum=0.9)
        with pytest.raises(tc.errors.InvalidArgumentError, match="none here"):
            await mixed.set_policy(tc.policies.Sync(2))
        await one.opt.set_policy(tc.policies.Sync(1))
        before = await values(one)
        async with two.client.context() as ctx:
            await ctx.backward(await two.loss(batches(1)[0]))
            with pytest.raises(tc.errors.InvalidArgumentError, match="none here"):
                await mixed.step(ctx)
        assert all(torch.equal(now, then) for now, then in zip(await values(one), before, strict=True))


async def test_an_owner_with_a_policy_for_its_part_alone_is_named() -> None:
    async with trainers(1, None) as (servers, (one,)):
        alone = await one.client.optimizer(optim.SGD, one.nets[1].parameters(), lr=0.1, momentum=0.9)
        await alone.set_policy(tc.policies.Sync(1))
        with pytest.raises(tc.errors.NameConflictError, match="on this owner alone"):
            await one.opt.set_policy(tc.policies.Sync(2))
        assert not hosted(servers[1]).aggregator.owners


async def test_no_round_waits_for_a_trainer_that_leaves_before_it_knows_of_rounds() -> None:
    async with trainers(3, None) as (servers, (one, two, three)):
        await one.opt.set_policy(tc.policies.Sync())
        assert len(hosted(servers[0]).trainers) == 3
        await three.opt.leave()
        found = await together(one.step(batches(1)[0]), two.step(batches(1)[0]))
        assert [each.counted for each in found] == [2, 2]


@pytest.mark.parametrize("restarted", [(0,), (1,)], ids=str)
async def test_rounds_go_on_after_a_restart(tmp_path: Path, restarted: tuple[int, ...]) -> None:
    async with Owner(tmp_path / "0", "ps0") as first, Owner(tmp_path / "1", "ps1") as second:
        places = [first, second]
        async with tc.connect(*(each.address for each in places)) as ps:
            one = await begun(ps, ["ps0", "ps1"], None)
            await one.step(batches(1)[0])
            await one.opt.set_policy(tc.policies.Sync(1))
            await one.step(batches(1)[0])
            for place in restarted:
                await places[place].restart()
            assert await one.step(batches(1)[0]) == {"ps0": 3, "ps1": 3}
            assert [hosted(each.server).aggregator.owners for each in places] == [("ps0", "ps1")] * 2


@pytest.mark.parametrize("places", [1, 2])
async def test_no_trainer_finds_an_optimizer_before_it_has_its_policy(
    monkeypatch: pytest.MonkeyPatch, places: int
) -> None:
    names = [f"ps{place}" for place in range(places)]
    async with owners(*names) as servers, tc.connect(*(each.address for each in servers)) as ps:
        seen = []
        begin = handlers.begin

        def look(*args: object, **kwargs: object) -> None:
            objects = [each for server in servers for each in server.engine.registry.objects()]
            seen.append(any(isinstance(each.value, HostedOptimizer) for each in objects if each.name))
            begin(*args, **kwargs)  # type: ignore[arg-type]

        monkeypatch.setattr(handlers, "begin", look)
        await begun(ps, names, tc.policies.Sync(2))
        assert len(seen) == places and not seen[0]
