"""Tests of what programs of torch do with modules: replicas follow, or say why they cannot."""

from __future__ import annotations

import asyncio
import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.nn.utils import parametrizations

import trainer_client as tc
from tests.integration.replica_models import Parametrized, Wide
from tests.integration.test_replicas import hosted_optimizer, joined, same
from tests.training import hosted_value

X = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))


async def test_parametrized_odd_and_complex_parameters_train_like_local_torch() -> None:
    async with joined() as (_, (ps,)):
        net = await ps.module(Parametrized, name="net", seed=1)
        opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1, momentum=0.9)
        replica = await net.replica()
        local = copy.deepcopy(replica.module)
        sgd = optim.SGD(local.parameters(), lr=0.1, momentum=0.9)
        for _ in range(3):
            for module in (replica, local):
                module(X[:, :6]).square().mean().backward()
            await replica.push(opt)
            sgd.step()
            sgd.zero_grad()
            for mine, theirs in zip(replica.parameters(), local.parameters(), strict=True):
                torch.testing.assert_close(mine, theirs)


def write(replica: tc.Replica) -> None:
    with torch.no_grad():
        replica.module.layers[0].weight.add_(1)  # type: ignore[union-attr]


def load(replica: tc.Replica) -> None:
    replica.module.load_state_dict(Wide(8).state_dict())


def round_off(replica: tc.Replica) -> None:
    replica.bfloat16().float()


@pytest.mark.parametrize(("change", "count"), [(write, 1), (load, 8), (round_off, 8)])
async def test_a_pull_undoes_what_has_changed_here(change: Callable[[tc.Replica], None], count: int) -> None:
    async with joined() as (server, (ps,)):
        net = await ps.module(Wide, 8, name="net", seed=1)
        replica = await net.replica()
        change(replica)
        assert not same(replica, hosted_value(server, net))
        assert await replica.pull() == count and await replica.pull() == 0
        assert same(replica, hosted_value(server, net))


async def test_a_local_change_is_noticed_also_when_other_parameters_arrive_in_between() -> None:
    async with joined(2) as (server, (one, two)):
        net = await one.module(Wide, 8, name="net", seed=1)
        opt = await two.optimizer(optim.SGD, (await two.attach("net")).parameters()[2:3], lr=0.1)  # type: ignore[attr-defined]
        replica = await net.replica()
        other = await (await two.module(Wide, 8, name="net", seed=1)).replica()
        other(X).square().sum().backward()
        await other.push(opt)
        pending = replica.pull()
        await asyncio.sleep(0)
        write(replica)
        assert await pending == 1
        assert await replica.pull() == 1
        assert same(replica, hosted_value(server, net))


async def test_a_replica_in_another_dtype_is_cast_both_ways() -> None:
    async with joined() as (server, (ps,)):
        net = await ps.module(Wide, 8, name="net", seed=1)
        opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
        replica = (await net.replica()).double()
        replica(X.double()).square().mean().backward()
        await replica.push(opt)
        for mine, theirs in zip(replica.parameters(), hosted_value(server, net).parameters(), strict=True):
            assert mine.dtype is torch.float64 and torch.equal(mine, theirs.double())


def assign(module: Any) -> None:
    module.layers[1].weight = nn.Parameter(module.layers[1].weight.detach().clone())


def exchange(module: Any) -> None:
    module.layers[1] = copy.deepcopy(module.layers[1])


def parametrize(module: Any) -> None:
    parametrizations.weight_norm(module.layers[1])


@pytest.mark.parametrize("change", [assign, exchange, parametrize])
async def test_parameters_that_were_replaced_are_refused_and_not_left_out(change: Callable[[Any], None]) -> None:
    async with joined() as (server, (ps,)):
        net = await ps.module(Wide, 8, name="net", seed=1)
        opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
        replica = await net.replica()
        change(replica.module)
        replica(X).square().mean().backward()
        for act in (lambda: replica.push(opt), replica.pull, lambda: ps.replicas(replica).push(opt)):
            with pytest.raises(
                tc.errors.InvalidArgumentError, match=r"'layers\.1\.weight' of this replica is not the parameter"
            ):
                act()
        assert hosted_optimizer(server).version == 0


async def test_inference_mode_around_pulls_leaves_parameters_that_can_be_trained() -> None:
    async with joined() as (server, (ps,)):
        net = await ps.module(Wide, 8, name="net", seed=1)
        opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
        with torch.inference_mode():
            replica = await net.replica()
            await net.load_state_dict(Wide(8).state_dict())
            await replica.pull()
        replica(X).square().mean().backward()
        assert await replica.push(opt) == {"ps0": 1}
        assert same(replica, hosted_value(server, net))


async def test_functions_over_parameters_see_the_pulled_ones() -> None:
    async with joined() as (server, (ps,)):
        net = await ps.module(Wide, 8, name="net", seed=1)
        opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
        replica = await net.replica()
        for _ in range(2):
            found = torch.func.functional_call(replica, dict(replica.named_parameters()), (X,))
            assert torch.equal(found, hosted_value(server, net)(X))
            found.square().mean().backward()
            await replica.push(opt)


async def test_what_a_replica_cannot_be_is_said() -> None:
    async with joined() as (_, (ps,)):
        net = await ps.module(Wide, 8, name="net", seed=1)
        with torch.device("meta"), pytest.raises(tc.errors.InvalidArgumentError, match="is on the meta device"):
            net.replica()
        replica = await net.replica()
        for act in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match=r"copy\.deepcopy\(replica\.module\)"):
                act(replica)
        assert same(copy.deepcopy(replica.module), replica)
