"""Tests of pushes that are under way while the next forward runs: their order, their errors, and what they train."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import optim

import trainer_client as tc
from tests.integration.replica_models import Wide
from tests.integration.test_replicas import hosted_optimizer, joined, same
from tests.training import hosted_value


@pytest.mark.parametrize("overlap", [1, 2])
async def test_overlapping_pushes_train_like_delayed_gradients(overlap: int) -> None:
    async with joined() as (server, (ps,)):
        net = await ps.module(Wide, name="net", seed=1)
        opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
        replica = await net.replica(overlap=overlap)
        newest = copy.deepcopy(replica.module)
        sgd = optim.SGD(newest.parameters(), lr=0.1)
        versions = [copy.deepcopy(newest)]
        results = []
        for step in range(6):
            x = torch.full((1, 64), float(step))
            replica(x).square().mean().backward()
            results.append(await replica.push(opt))
            # The same with a forward of the version that was the newest `overlap` steps before.
            old = copy.deepcopy(versions[max(step - overlap, 0)])
            old(x).square().mean().backward()
            for mine, theirs in zip(newest.parameters(), old.parameters(), strict=True):
                mine.grad = theirs.grad
            sgd.step()
            versions.append(copy.deepcopy(newest))
        results += await replica.finish()
        assert results[:overlap] == [None] * overlap and await replica.finish() == []
        found = [each for each in results if each is not None]
        assert [each["ps0"] for each in found] == [1, 2, 3, 4, 5, 6]
        assert [each.staleness for each in found] == [min(step, overlap) for step in range(6)]
        assert same(replica, newest) and same(hosted_value(server, net), newest)


async def test_overlapping_pushes_step_in_their_order() -> None:
    async with joined() as (server, (ps,)):
        net = await ps.module(Wide, name="net", seed=1)
        opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
        replica = await net.replica(overlap=2)
        unanswered = net.session.requests.window
        with hosted_optimizer(server).lock:
            for _ in range(3):
                replica(torch.ones(1, 64)).sum().backward()
                last = replica.push(opt)
            # The owner might run the later ones first, in other threads.
            assert len([*unanswered.unanswered]) == 1
        assert await last == {"ps0": 1}
        assert [each["ps0"] for each in await replica.finish() if each is not None] == [2, 3]


async def test_a_push_that_waits_for_the_one_before_can_be_cancelled() -> None:
    async with joined() as (server, (ps,)):
        net = await ps.module(Wide, name="net", seed=1)
        opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
        replica = await net.replica()
        with hosted_optimizer(server).lock:
            pushes = []
            for _ in range(3):
                replica(torch.ones(1, 64)).sum().backward()
                pushes.append(replica.push(opt))
            pushes[1].cancel()
            # The third still waits for the first.
            assert len([*net.session.requests.window.unanswered]) == 1
        with pytest.raises(tc.errors.CancelledCallError):
            await pushes[1]
        assert await pushes[0] == {"ps0": 1} and await pushes[2] == {"ps0": 2}
        assert same(replica, hosted_value(server, net))


async def test_an_error_of_an_overlapping_push_comes_with_the_next_one() -> None:
    async with joined() as (server, (ps,)):
        net = await ps.module(Wide, name="net", seed=1)
        opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1, non_finite="refuse")
        replica = await net.replica(overlap=1)
        for value in (float("nan"), 1.0):
            replica(torch.full((1, 64), value)).sum().backward()
            if value == 1.0:
                with pytest.raises(tc.errors.NonFiniteGradientError):
                    await replica.push(opt)
            else:
                assert await replica.push(opt) is None
        assert [each["ps0"] for each in await replica.finish() if each is not None] == [1]
        assert same(replica, hosted_value(server, net))
        with pytest.raises(tc.errors.InvalidArgumentError, match="overlap is a number"):
            net.replica(overlap=-1)
