"""Tests of pushes of local steps after one that was cancelled or lost: owners count one push of a difference."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import trainer_client as tc
from tests.integration import replica_models
from tests.integration import test_local_steps_over_owners as over_owners
from tests.integration.held import held_method, held_request
from tests.integration.restarting import Owner
from tests.integration.spanning import held, hosted, waiting
from tests.integration.test_local_steps import begun, data, sgd, trainers
from tests.integration.test_local_steps_over_owners import same_on_owners
from tests.integration.test_replicas import hosted_optimizer, same
from tests.training import hosted_value
from tests.waiting import until


@pytest.mark.parametrize("policy", [tc.policies.Async(), tc.policies.Sync(1), tc.policies.Quorum(1)], ids=str)
@pytest.mark.parametrize("more", [0, 1])
async def test_a_cancelled_push_that_its_owner_begins_late_does_not_count_beside_the_next_one(
    monkeypatch: pytest.MonkeyPatch, policy: tc.policies.Policy, more: int
) -> None:
    async with trainers(1, tc.LocalSGD(1), policy=policy) as (server, (one,)):
        with held_request(monkeypatch, "push") as late:
            (batches,) = data(1, 2 + more, 0)
            first = asyncio.create_task(one.train(batches[:1]))
            await late.has_come()
            first.cancel()
            await asyncio.wait([first])
            await one.train(batches[1:])
            assert same(one.replica, hosted_value(server, one.net))
            await late.go_on()
        assert hosted_optimizer(server).version == 1 + more
        assert same(one.replica, hosted_value(server, one.net))
        await one.train(batches[:1])
        assert hosted_optimizer(server).version == 2 + more


@pytest.mark.parametrize(
    "policy", [tc.policies.Sync(1), tc.policies.Quorum(1), tc.policies.BoundedStaleness(1)], ids=str
)
async def test_a_push_does_not_count_beside_a_cancelled_one_that_is_decided_and_not_applied(
    monkeypatch: pytest.MonkeyPatch, policy: tc.policies.Policy
) -> None:
    async with trainers(1, tc.LocalSGD(1), policy=policy) as (server, (one,)):
        (batches,) = data(1, 3, 0)
        optimizer = hosted_optimizer(server)
        with held_method(monkeypatch, optimizer.aggregator.steps, "apply") as applying:
            first = asyncio.create_task(one.train(batches[:1]))
            await applying.has_come()
            first.cancel()
            await asyncio.wait([first])
            second = asyncio.create_task(one.train(batches[1:2]))
            await until(lambda: len(optimizer.aggregator._offered) == 2)
            await applying.go_on()
        with pytest.raises(tc.errors.InvalidArgumentError, match=r"has counted.* call pull\(\)"):
            await second
        assert optimizer.version == 1
        await one.replica.pull()
        assert same(one.replica, hosted_value(server, one.net))
        assert (await one.train(batches[2:]))[0] == {"ps0": 2}


async def test_a_push_that_its_owner_begins_after_later_differences_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with trainers(1, tc.LocalSGD(1), policy=tc.policies.Async()) as (server, (one,)):
        (batches,) = data(1, 3, 0)
        with held_request(monkeypatch, "push") as late:
            first = asyncio.create_task(one.train(batches[:1]))
            await late.has_come()
            first.cancel()
            await asyncio.wait([first])
            await one.train(batches[1:])
            await late.go_on()
        assert hosted_optimizer(server).version == 2
        assert same(one.replica, hosted_value(server, one.net))


@pytest.mark.parametrize("policy", [None, tc.policies.Sync(1)], ids=str)
async def test_an_owner_that_starts_again_knows_the_push_that_has_counted(
    tmp_path: Path, policy: tc.policies.Policy | None
) -> None:
    async with Owner(tmp_path, modules=[replica_models]) as owner, tc.connect(owner.address) as ps:
        one = await begun(ps, tc.LocalSGD(1), sgd, policy=policy)
        (batches,) = data(1, 2, 0)
        one.replica(batches[0]).square().mean().backward()
        lost = one.local.step()
        await until(lambda: lost.settled)  # and is not read
        await owner.restart()
        with pytest.raises(tc.errors.InvalidArgumentError, match=r"has counted.* call pull\(\)"):
            await one.local.push()
        await one.replica.pull()
        assert same(one.replica, hosted_value(owner.server, one.net))
        assert (await one.train(batches[1:]))[0] == {"ps0": 2}


async def test_a_push_goes_on_after_one_that_failed_and_did_not_count_although_others_have_stepped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with trainers(2, tc.LocalSGD(1), policy=tc.policies.Async()) as (server, (one, other)):
        with held_request(monkeypatch, "push") as late:
            first = asyncio.create_task(one.train(data(1, 1, 0)[0]))
            await late.has_come()
            first.cancel()
            await asyncio.wait([first])
            await other.train(data(1, 1, 1)[0])
            stepped = await one.local.push(values={"loss": 1.0})
            assert stepped == {"ps0": 2} and stepped.staleness == 1 and not stepped.repeated
            await late.go_on()
        assert hosted_optimizer(server).version == 2
        assert same(one.replica, hosted_value(server, one.net))


@pytest.mark.parametrize("policy", [tc.policies.Sync(), tc.policies.Async()], ids=str)
async def test_a_cancelled_push_that_is_offered_late_does_not_count_beside_the_next_one(
    monkeypatch: pytest.MonkeyPatch, policy: tc.policies.Policy
) -> None:
    async with over_owners.trainers(1, tc.LocalSGD(1), policy=policy) as (servers, (one,)):
        (batches,) = data(1, 2, 0)
        with (
            held_request(monkeypatch, "step", lambda request: request.offer.withdraw),
            held_request(monkeypatch, "step", lambda request: not request.offer.withdraw) as late,
        ):
            first = asyncio.create_task(one.train(batches[:1]))
            await late.has_come()
            first.cancel()
            await asyncio.wait([first])
            await one.train(batches[1:])
            await late.go_on()
        await until(lambda: waiting(servers[0]) == 0 and held(servers[1]) == 0 and hosted(servers[1]).version > 0)
        assert [hosted(server).version for server in servers] == [1, 1]
        same_on_owners(servers, one)
        assert (await one.train(batches[:1]))[0] == {"ps0": 2, "ps1": 2}
        same_on_owners(servers, one)


@pytest.mark.parametrize("policy", [tc.policies.Sync(), tc.policies.Async(), tc.policies.Quorum(1)], ids=str)
async def test_a_push_over_owners_does_not_count_beside_a_cancelled_one_that_is_decided_and_not_applied(
    monkeypatch: pytest.MonkeyPatch, policy: tc.policies.Policy
) -> None:
    async with over_owners.trainers(1, tc.LocalSGD(1), policy=policy) as (servers, (one,)):
        (batches,) = data(1, 3, 0)
        with held_method(monkeypatch, hosted(servers[0]).aggregator.steps, "apply") as applying:
            first = asyncio.create_task(one.train(batches[:1], values={"pushes": 1}, reduce="sum"))
            await applying.has_come()
            first.cancel()
            await asyncio.wait([first])
            second = asyncio.create_task(one.train(batches[1:2], values={"pushes": 1}, reduce="sum"))
            await until(lambda: second.done() or waiting(servers[0]) == 2)
            await applying.go_on()
        with pytest.raises(tc.errors.InvalidArgumentError, match=r"has counted.* call pull\(\)"):
            await second
        await until(lambda: waiting(servers[0]) == 0 and held(servers[1]) == 0 and hosted(servers[1]).version > 0)
        assert [hosted(server).version for server in servers] == [1, 1]
        await one.model.pull()
        same_on_owners(servers, one)
        assert (await one.train(batches[2:], values={"pushes": 1}, reduce="sum"))[0] == {"ps0": 2, "ps1": 2}
        same_on_owners(servers, one)
        assert await one.local.optimizer.values() == {"pushes": 2}
