"""Tests of the gradients that rounds sum up: sparse and dense ones, and those of several dtypes, as torch has them."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
import torch
from torch import nn, optim

import trainer_client as tc
from ps_service.engine import Engine
from ps_service.server import Server
from tests.allowed import allowed
from tests.integration import policy_models
from tests.integration.policy_models import Bag, Mixed
from tests.integration.test_replicas import hosted_optimizer
from tests.training import hosted_value
from tests.waiting import until


@asynccontextmanager
async def joined(count: int, policy: tc.policies.Policy, model: type[nn.Module], **options: Any) -> AsyncIterator[Any]:
    """An owner, and replicas of a model with their optimizers and the hosted module."""
    async with Server(Engine("ps0", allowed(policy_models), threads=8)) as server, AsyncExitStack() as stack:
        replicas, opts, nets = [], [], []
        for _ in range(count):
            ps = await stack.enter_async_context(tc.connect(server.address))
            net = await ps.module(model, name="net", seed=1)
            opts.append(await ps.optimizer(optim.SGD, net.parameters(), policy=policy, **options))
            replicas.append(await net.replica())
            nets.append(net)
        yield server, replicas, opts, hosted_value(server, nets[0])


def ids(seed: int) -> torch.Tensor:
    return torch.randint(0, 30, (5, 3), generator=torch.Generator().manual_seed(seed))


POLICIES = [
    tc.policies.Sync(3, "mean"),
    tc.policies.Sync(3, "sum"),
    tc.policies.Quorum(3),
    tc.policies.Quorum(3, of=3, reduce="sum"),
    tc.policies.Quorum(3, of=3),
]


@pytest.mark.parametrize(
    ("policy", "dense"),
    [*((POLICIES[0], dense) for dense in ((), (0, 1, 2), (0,))), *((policy, (2,)) for policy in POLICIES)],
    ids=str,
)
async def test_sparse_and_dense_gradients_of_one_round_add_up(
    policy: tc.policies.Policy, dense: tuple[int, ...]
) -> None:
    async with joined(3, policy, Bag, lr=0.02, momentum=0.9) as (server, replicas, opts, hosted):
        local = copy.deepcopy(hosted)
        local_opt = optim.SGD(local.parameters(), lr=0.02, momentum=0.9)
        is_mean = policy.reduce == "mean"  # type: ignore[union-attr]
        for turn in range(3):
            local_opt.zero_grad()
            for place, replica in enumerate(replicas):
                x = ids(10 * turn + place)
                for net in (replica.module, copy.deepcopy(local)):
                    net.zero_grad()
                    (net(x).square().sum() / (3 if is_mean and net is not replica.module else 1)).backward()
                if place in dense:
                    weight = replica.module.rows.weight
                    weight.grad = weight.grad.to_dense()
                for mine, theirs in zip(local.parameters(), net.parameters(), strict=True):
                    found = theirs.grad.to_dense() if theirs.grad.is_sparse else theirs.grad
                    mine.grad = found if mine.grad is None else mine.grad + found
            await asyncio.gather(*(each.push(opt) for each, opt in zip(replicas, opts, strict=True)))
            local_opt.step()
            await until(lambda turn=turn: hosted_optimizer(server).version == turn + 1)
            await asyncio.gather(*(each.pull() for each in replicas))
            for mine, theirs in zip(hosted.parameters(), local.parameters(), strict=True):
                torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("policy", POLICIES, ids=str)
async def test_every_dtype_has_the_mean_or_sum_that_it_can_have(policy: tc.policies.Policy) -> None:
    async with joined(3, policy, Mixed, lr=1.0) as (server, replicas, opts, hosted):
        before = [each.detach().clone() for each in hosted.parameters()]
        values = [1.0, 2.0**-9, 3.0]
        for replica, value in zip(replicas, values, strict=True):
            for parameter in replica.parameters():
                parameter.grad = torch.full_like(parameter, value)
        await asyncio.gather(*(each.push(opt) for each, opt in zip(replicas, opts, strict=True)))
        await until(lambda: hosted_optimizer(server).version == 1)
        total = sum(values) / (3 if policy.reduce == "mean" else 1)  # type: ignore[union-attr]
        for now, then in zip(hosted.parameters(), before, strict=True):
            assert now.dtype == then.dtype
            assert torch.equal(now, then - torch.full_like(then, total))


@pytest.mark.parametrize("policy", POLICIES, ids=str)
async def test_a_mean_of_halves_does_not_overflow_on_the_way(policy: tc.policies.Policy) -> None:
    async with joined(3, policy, Mixed, lr=1.0, non_finite="refuse") as (server, replicas, opts, hosted):
        is_mean = policy.reduce == "mean"  # type: ignore[union-attr]
        value = 40_000.0 if is_mean else 20_000.0
        for replica in replicas:
            for parameter in replica.parameters():
                parameter.grad = torch.full_like(parameter, value)
        await asyncio.gather(*(each.push(opt) for each, opt in zip(replicas, opts, strict=True)))
        await until(lambda: hosted_optimizer(server).version == 1)
        assert all(each.isfinite().all() for each in hosted.parameters())
        wanted = value if is_mean else 3 * value
        for each in hosted.parameters():
            torch.testing.assert_close(each.double(), torch.full_like(each, -wanted).double(), rtol=1e-2, atol=1.0)
