"""Tests of local steps with replicas whose parameters were changed after the last pull."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn, optim

import trainer_client as tc
from tests.integration.replica_models import Wide
from tests.integration.test_local_steps import adamw, data, sgd
from tests.integration.test_replicas import joined, same
from tests.integration.test_replicas_and_torch import load, round_off, write
from tests.training import hosted_value

REFUSED = r"'layers\.\S+' was written to .* call pull\(\) .* load_state_dict\(\)"


def warm_up(replica: tc.Replica) -> None:
    inner = optim.SGD(replica.parameters(), lr=0.1)
    replica(torch.ones(1, 8)).sum().backward()
    inner.step()
    inner.zero_grad()


def load_and_move(replica: tc.Replica) -> None:
    load(replica)
    replica.bfloat16()


def assign_data(replica: tc.Replica) -> None:
    for parameter in replica.parameters():
        parameter.data = torch.ones_like(parameter)


@pytest.mark.parametrize("change", [write, load, warm_up, load_and_move])
async def test_a_replica_that_was_written_to_is_refused_until_a_pull(change: Callable[[tc.Replica], None]) -> None:
    async with joined() as (server, (ps,)):
        net = await ps.module(Wide, 8, name="net", seed=1)
        replica = await net.replica()
        inner = sgd(replica.parameters())
        change(replica)
        with pytest.raises(tc.errors.InvalidArgumentError, match=REFUSED):
            await ps.local_steps(replica, inner, tc.LocalSGD(2), name="outer")
        with pytest.raises(tc.errors.UnknownNameError):
            await ps.attach("outer")
        opt = await ps.optimizer(optim.SGD, net.parameters(), lr=1.0, name="outer")
        with pytest.raises(tc.errors.InvalidArgumentError, match=REFUSED):
            replica.local_steps(inner, opt, every=2)
        await replica.pull()
        replica.float()
        await replica.pull()
        assert same(replica, hosted_value(server, net))
        local = replica.local_steps(inner, opt, every=2)
        for x in data(1, 2, 0)[0]:
            replica(x).square().mean().backward()
            await local.step()
        assert same(replica, hosted_value(server, net))


async def test_one_of_several_replicas_that_was_written_to_is_refused() -> None:
    async with joined() as (_, (ps,)):
        first, second = [await (await ps.module(Wide, 8, name=name)).replica() for name in ("first", "second")]
        model = ps.replicas(nn.Sequential(first, second))
        write(second)
        with pytest.raises(tc.errors.InvalidArgumentError, match=REFUSED):
            await ps.local_steps(model, sgd(model.parameters()), tc.LocalSGD(2))
        await model.pull()
        await ps.local_steps(model, sgd(model.parameters()), tc.LocalSGD(2))


async def test_values_loaded_on_the_owner_are_those_that_local_steps_begin_with() -> None:
    async with joined() as (server, (ps,)):
        net = await ps.module(Wide, 8, name="net", seed=1)
        replica = await net.replica()
        loaded = Wide(8)
        await net.load_state_dict(loaded.state_dict())
        await replica.pull()
        local = await ps.local_steps(replica, sgd(replica.parameters()), tc.LocalSGD(2))
        await local.push()  # of no difference
        assert same(replica, loaded) and same(hosted_value(server, net), loaded)


@pytest.mark.parametrize("change", [round_off, assign_data])
async def test_a_pull_brings_the_owners_parameters_of_a_replica_that_was_moved_before_local_steps(
    change: Callable[[tc.Replica], None],
) -> None:
    async with joined() as (server, (ps,)):
        net = await ps.module(Wide, 8, name="net", seed=1)
        replica = await net.replica()
        change(replica)
        await ps.local_steps(replica, sgd(replica.parameters()), tc.LocalSGD(2))
        assert not same(replica, hosted_value(server, net))
        assert await replica.pull() == len([*replica.parameters()]) and await replica.pull() == 0
        assert same(replica, hosted_value(server, net))


async def test_local_steps_with_another_local_optimizer_go_on_from_the_changed_parameters() -> None:
    async with joined() as (server, (ps,)):
        net = await ps.module(Wide, 8, name="net", seed=1)
        replica = await net.replica()
        for inner in (sgd, adamw):
            local = await ps.local_steps(replica, inner(replica.parameters()), tc.LocalSGD(5))
            replica(torch.ones(1, 8)).sum().backward()
            await local.step()
        own = [each.detach().clone() for each in replica.parameters()]
        await local.push()
        assert same(replica, hosted_value(server, net))
        for found, mine in zip(replica.parameters(), own, strict=True):
            torch.testing.assert_close(found, mine)
