"""Tests that the staleness which trainers are told is that of a simulation of their policy, in the order that was."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest
import torch
from torch import optim

import trainer_client as tc
from ps_service.policies.offers import Offer
from tests.integration.staleness_simulation import Arrival, Fate, simulate
from tests.integration.test_replicas import Wide, hosted_optimizer, joined
from tests.training import apart
from tests.waiting import until

TRAINERS, STEPS = 4, 6

POLICIES = [
    tc.policies.Async(tc.policies.Scale()),
    tc.policies.Async(tc.policies.Reject(after=2)),
    tc.policies.BoundedStaleness(2),
    tc.policies.BoundedStaleness(0),
    tc.policies.Quorum(3, of=4),
    tc.policies.Quorum(3, of=4, late="next"),
    tc.policies.Quorum(3),
    tc.policies.Quorum(8, stale=tc.policies.Reject(after=1)),
]


@pytest.mark.parametrize("policy", POLICIES, ids=str)
async def test_the_staleness_in_answers_is_that_of_the_simulated_policy(
    policy: tc.policies.Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with joined(TRAINERS) as (server, clients):
        nets = [await ps.module(Wide, 8, 2, name="net", seed=1) for ps in clients]
        opts = [
            await ps.optimizer(optim.SGD, net.parameters(), lr=0.01, policy=policy)
            for ps, net in zip(clients, nets, strict=True)
        ]
        replicas = [await net.replica() for net in nets]
        hosted = hosted_optimizer(server)
        numbers = {ps.trainer: number for number, ps in enumerate(clients)}
        order: list[int] = []
        rounds = hosted.aggregator._rounds
        offer = rounds.offer

        def note(offered: Offer) -> object:
            order.append(numbers[offered.key.trainer])
            return offer(offered)

        monkeypatch.setattr(rounds, "offer", note)
        reads: list[list[int]] = [[] for _ in clients]
        told: list[list[Fate]] = [[] for _ in clients]
        whole: list[int] = []  # offers before the first trainer leaves, after which rounds take fewer

        async def train(number: int) -> None:
            chance = random.Random(number)
            replica = replicas[number]
            for _ in range(STEPS):
                replica(torch.ones(2, 8)).square().mean().backward()
                for _ in range(chance.choice((0, 0, 1, 2 * number))):
                    await clients[number].status()
                # Every step changes every parameter, so its steps are the version that was read.
                (read,) = set(replica.exchange.tensors.steps)
                reads[number].append(read)
                stepped = await replica.push(opts[number])
                assert stepped is not None
                told[number].append(Fate(stepped.staleness, stepped.dropped))
            whole.append(len(order))
            await opts[number].leave()

        await asyncio.gather(*map(train, range(TRAINERS)))
        assert Counter(order) == dict.fromkeys(range(TRAINERS), STEPS)
        left = [iter(each) for each in reads]
        arrivals = [Arrival(number, next(left[number])) for number in order]
        fates = simulate(policy, TRAINERS, arrivals[: whole[0]])
        said = [iter(each) for each in told]
        found = [next(said[number]) for number in order]
        assert {place: found[place] for place in fates} == fates
        assert len(fates) >= whole[0] - TRAINERS >= STEPS and any(each.staleness for each in fates.values())
        histogram = Counter(each.staleness for each in found if not each.dropped)
        await until(lambda: hosted.version == rounds.version)
        if not isinstance(policy, tc.policies.Quorum):
            # There the metrics count each step with the largest staleness of its gradients.
            counted = hosted.counter.snapshot().staleness
            assert counted.count == sum(histogram.values())
            assert counted.sum == sum(staleness * count for staleness, count in histogram.items())


@pytest.mark.parametrize("how", ["push", "step"])
@pytest.mark.parametrize(
    "policy", [tc.policies.Async(tc.policies.Reject(after=2)), tc.policies.Quorum(1, of=1)], ids=str
)
async def test_steps_of_other_optimizers_count_also_if_they_are_more_than_those_of_the_policy(
    policy: tc.policies.Policy, how: str
) -> None:
    """The policy is that of an optimizer which has stepped once."""
    async with joined(1) as (_, (ps,)):
        net = await ps.module(Wide, 8, 2, name="net", seed=1)
        plain = await ps.optimizer(optim.SGD, net.parameters(), name="plain", lr=0.01)
        opt = await ps.optimizer(optim.SGD, net.parameters(), name="opt", lr=0.01, policy=policy)
        replica, other = await net.replica(), await net.replica()
        x = torch.ones(2, 8)

        async def push(replica: tc.Replica, opt: tc.DistributedOptimizer) -> tc.Stepped:
            replica(x).square().mean().backward()
            stepped = await replica.push(opt)
            assert stepped is not None
            return stepped

        assert (await push(replica, opt)).staleness == 0
        async with ps.context() as ctx:
            await ctx.backward((await net(x)).square().mean())
            for _ in range(5):
                await apart(push(other, plain))
            stepped = await (opt.step(ctx) if how == "step" else push(replica, opt))
    assert (stepped.staleness, bool(stepped.dropped)) == (5, True)
