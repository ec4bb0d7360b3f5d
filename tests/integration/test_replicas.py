"""Tests of replicas with real owners: what they pull, what a push steps, and that both equal local training."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
import torch
from torch import nn, optim

import trainer_client as tc
from ps_service.engine import Engine
from ps_service.server import Server
from ps_service.training.optimizers import HostedOptimizer
from tests.allowed import allowed
from tests.integration import replica_models
from tests.integration.replica_models import Net, Wide, Words
from tests.integration.support import bits
from tests.training import hosted_value


@asynccontextmanager
async def joined(count: int = 1) -> AsyncIterator[tuple[Server, list[tc.Client]]]:
    """An owner of the models, and its trainers."""
    async with Server(Engine("ps0", allowed(replica_models), threads=8)) as server, AsyncExitStack() as stack:
        yield server, [await stack.enter_async_context(tc.connect(server.address)) for _ in range(count)]


def images(seed: int, rows: int = 6) -> torch.Tensor:
    return torch.randn(rows, 3, 5, 5, generator=torch.Generator().manual_seed(seed))


def words(seed: int) -> torch.Tensor:
    return torch.randint(0, 50, (4, 3), generator=torch.Generator().manual_seed(seed))


def same(found: nn.Module, expected: nn.Module) -> bool:
    """Whether two modules have the same parameters, bit for bit."""
    return bits([*found.parameters()]) == bits([*expected.parameters()])


def learn(net: nn.Module, opt: optim.Optimizer, x: torch.Tensor) -> None:
    opt.zero_grad()
    net(x).square().mean().backward()
    opt.step()


def hosted_optimizer(server: Server) -> HostedOptimizer:
    (found,) = [each.value for each in server.engine.registry.objects() if isinstance(each.value, HostedOptimizer)]
    return found


async def test_a_replica_is_the_owners_module_with_its_parameters_and_buffers() -> None:
    async with joined() as (server, (ps,)):
        before = torch.get_rng_state()
        net = await ps.module(Net, 6, name="net", seed=3)
        replica = await net.replica()
        assert torch.equal(torch.get_rng_state(), before)
        hosted = hosted_value(server, net)
        assert type(replica.module) is Net and replica.module is not hosted
        assert bits(replica.module.state_dict()) == bits(hosted.state_dict())
        assert [each.stride() for each in replica.parameters()] == [each.stride() for each in hosted.parameters()]
        replica.eval(), hosted.eval()
        assert torch.equal(replica(images(1)), hosted(images(1)))


@pytest.mark.parametrize(
    ("model", "data", "make"),
    [
        (Net, images, lambda ps: optim.SGD(ps, lr=0.1, momentum=0.9)),
        (Net, images, lambda ps: optim.AdamW(ps, lr=0.01)),
        (Words, words, lambda ps: optim.SGD(ps, lr=0.1)),
        (Wide, lambda seed: torch.randn(3, 64, generator=torch.Generator().manual_seed(seed)), optim.Adam),
    ],
    ids=["momentum", "adamw", "sparse and tied", "adam"],
)
async def test_pushes_train_like_local_torch_bit_for_bit(
    model: type[nn.Module], data: Callable[[int], torch.Tensor], make: Callable[[Any], optim.Optimizer]
) -> None:
    async with joined() as (server, (ps,)):
        net = await ps.module(model, name="net", seed=1)
        replica = await net.replica()
        local = copy.deepcopy(replica.module)
        local_opt = make(local.parameters())
        options = {key: value for key, value in local_opt.defaults.items() if key in ("lr", "momentum")}
        opt = await ps.optimizer(type(local_opt), net.parameters(), **options)
        for step in range(4):
            replica(data(step)).square().mean().backward()
            stepped = await replica.push(opt)
            assert stepped == {"ps0": step + 1} and (stepped.staleness, stepped.counted, stepped.dropped) == (0, 1, "")
            assert all(each.grad is None for each in replica.parameters())
            learn(local, local_opt, data(step))
            assert same(replica, local) and same(hosted_value(server, net), local)


async def test_a_pull_brings_only_what_has_changed() -> None:
    async with joined(2) as (_, (one, two)):
        net = await one.module(Net, name="net", seed=1)
        replica, other = await net.replica(), await (await two.module(Net, name="net", seed=1)).replica()
        opt = await two.optimizer(optim.SGD, (await two.attach("net")).parameters()[:1], lr=0.1)  # type: ignore[attr-defined]
        assert await replica.pull() == 0
        other(images(1)).sum().backward()
        await other.push(opt, pull=False)
        assert await replica.pull() == 1 and await replica.pull() == 0
        assert await other.pull() == 1 and same(replica, other)
        await net.load_state_dict(await net.state_dict())
        assert await replica.pull() == len(list(replica.parameters()))


async def test_buffers_come_when_they_have_changed_on_the_owner_and_stay_local_otherwise() -> None:
    async with joined() as (server, (ps,)):
        net = await ps.module(Net, name="net", seed=1)
        replica = await net.replica()
        opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
        replica(images(1)).sum().backward()
        own = replica.module.norm.running_mean.clone()
        await replica.push(opt)
        assert torch.equal(replica.module.norm.running_mean, own) and own.any()
        assert not hosted_value(server, net).norm.running_mean.any()
        await net(images(2))
        await replica.pull()
        assert bits(dict(replica.module.named_buffers())) == bits(dict(hosted_value(server, net).named_buffers()))


@pytest.mark.parametrize("reduce", ["mean", "sum"])
async def test_sync_of_two_replicas_equals_one_process_with_the_whole_batch(reduce: str) -> None:
    async with joined(2) as (server, clients):
        replicas, opts = [], []
        for ps in clients:
            net = await ps.module(Wide, name="net", seed=1)
            policy = tc.policies.Sync(2, reduce)  # type: ignore[arg-type]
            opts.append(await ps.optimizer(optim.SGD, net.parameters(), lr=0.1, momentum=0.9, policy=policy))
            replicas.append(await net.replica())
        local = copy.deepcopy(replicas[0].module)
        local_opt = optim.SGD(local.parameters(), lr=0.1, momentum=0.9)
        for step in range(4):
            batch = torch.randn(8, 64, generator=torch.Generator().manual_seed(step))
            for replica, part in zip(replicas, batch.chunk(2), strict=True):
                replica(part).square().mean().backward()
            found = await asyncio.gather(*(each.push(opt) for each, opt in zip(replicas, opts, strict=True)))
            assert [(each.counted, each.staleness) for each in found] == [(2, 0)] * 2
            local_opt.zero_grad()
            (local(batch).square().mean() * (2 if reduce == "sum" else 1)).backward()
            local_opt.step()
            for mine, theirs in zip(replicas[0].parameters(), local.parameters(), strict=True):
                torch.testing.assert_close(mine, theirs)
            assert same(*replicas)
        assert server.engine.compute.waiting == 0


async def test_staleness_counts_the_steps_of_others_since_the_pull() -> None:
    async with joined(2) as (server, (one, two)):
        nets = [await each.module(Wide, name="net", seed=1) for each in (one, two)]
        opts = [
            await ps.optimizer(optim.SGD, net.parameters(), lr=0.1) for ps, net in zip((one, two), nets, strict=True)
        ]
        slow, fast = [await net.replica() for net in nets]
        slow(torch.ones(1, 64)).sum().backward()
        for _ in range(3):
            fast(torch.ones(1, 64)).sum().backward()
            assert (await fast.push(opts[1])).staleness == 0
        assert (await slow.push(opts[0])).staleness == 3
        assert hosted_optimizer(server).counter.snapshot().staleness.sum == 3
        await opts[0].set_policy(tc.policies.Async(stale=tc.policies.Reject(after=1)))
        for _ in range(2):
            fast(torch.ones(1, 64)).sum().backward()
            assert not (await fast.push(opts[1])).dropped
        before = hosted_optimizer(server).version
        slow(torch.ones(1, 64)).sum().backward()
        dropped = await slow.push(opts[0])
        assert (dropped.dropped, dropped.staleness, dropped.counted) == ("stale", 2, 0)
        assert hosted_optimizer(server).version == before and same(slow, fast)


async def test_a_push_that_completes_a_round_of_anybody_brings_the_parameters_after_its_step() -> None:
    async with joined() as (_, (ps,)):
        net = await ps.module(Wide, name="net", seed=1)
        opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1, policy=tc.policies.Quorum(2))
        replica = await net.replica()
        for step in range(10):
            before = bits(replica.module.state_dict())
            for counted in (0, 2):
                replica(torch.ones(1, 64)).square().mean().backward()
                stepped = await replica.push(opt)
                assert stepped is not None and stepped.counted == counted
                assert stepped["ps0"] == step + (counted > 0)
                assert (bits(replica.module.state_dict()) != before) == (counted > 0)
            assert bits(replica.module.state_dict()) == bits(await net.state_dict())


async def test_gradients_accumulate_over_several_backwards_and_can_be_kept_and_clipped() -> None:
    async with joined() as (_, (ps,)):
        net = await ps.module(Wide, name="net", seed=1)
        replica = await net.replica()
        opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
        local = copy.deepcopy(replica.module)
        local_opt = optim.SGD(local.parameters(), lr=0.1)
        for module in (replica, local):
            for x in (torch.ones(2, 64), torch.full((1, 64), 3.0)):
                module(x).square().sum().backward()
            nn.utils.clip_grad_norm_(module.parameters(), 0.5)
        for _ in range(2):
            await replica.push(opt, zero_grad=False)
            local_opt.step()
            assert same(replica, local)
        assert all(each.grad is not None for each in replica.parameters())


async def test_frozen_parameters_and_those_without_a_gradient_are_left_out() -> None:
    async with joined() as (server, (ps,)):
        net = await ps.module(Net, name="net", seed=1)
        await net.parameter("conv.weight").requires_grad_(False)
        replica = await net.replica()
        assert [name for name, each in replica.module.named_parameters() if not each.requires_grad] == ["conv.weight"]
        opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1, weight_decay=0.5)
        before = {name: each.clone() for name, each in replica.module.named_parameters()}
        replica.module.head.bias.requires_grad_(False)
        replica(images(1)).sum().backward()
        # Frozen since by another trainer: its gradient does not count.
        await net.parameter("head.weight").requires_grad_(False)
        await replica.push(opt)
        changed = {name for name, each in replica.module.named_parameters() if not torch.equal(each, before[name])}
        assert changed == {"conv.bias", "norm.weight", "norm.bias"}
        assert same(hosted_value(server, net), replica)


async def test_a_scaler_unscales_here_and_skips_what_is_not_finite() -> None:
    async with joined() as (_, (ps,)):
        net = await ps.module(Wide, name="net", seed=1)
        replica = await net.replica()
        opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
        local = copy.deepcopy(replica.module)
        local_opt = optim.SGD(local.parameters(), lr=0.1)
        scalers = [torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1) for _ in range(2)]
        for step in range(3):
            for module, scaler in zip((replica, local), scalers, strict=True):
                x = torch.full((1, 64), float("inf") if step == 1 else 1.0)
                scaler.scale(module(x).sum()).backward()
            replica.unscale_(scalers[0])
            stepped = await replica.push(opt, scaler=scalers[0])
            assert (stepped is None) == (step == 1) and all(each.grad is None for each in replica.parameters())
            scalers[1].step(local_opt)
            local_opt.zero_grad()
            for scaler in scalers:
                scaler.update()
            assert same(replica, local) and scalers[0].get_scale() == scalers[1].get_scale()
        assert opt.remotes["ps0"] and scalers[0].get_scale() == 2048.0


async def test_a_skipped_push_also_forgets_what_is_not_finite_in_added_parameters() -> None:
    async with joined() as (_, (ps,)):
        net = await ps.module(Wide, name="net", seed=1)
        replica = await net.replica()
        opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
        replica.added = nn.Linear(1, 1)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        x = torch.full((1, 64), float("inf"))
        scaler.scale(replica.added(replica(x).sum().reshape(1)).sum()).backward()
        assert replica.added.weight.grad is not None
        assert await replica.push(opt, scaler=scaler) is None
        assert all(each.grad is None for each in replica.parameters())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
async def test_a_replica_may_have_another_dtype(dtype: torch.dtype) -> None:
    async with joined() as (server, (ps,)):
        net = await ps.module(Wide, name="net", seed=1)
        replica = (await net.replica()).to(dtype)
        opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
        replica(torch.ones(1, 64, dtype=dtype)).float().square().mean().backward()
        await replica.push(opt)
        assert {each.dtype for each in replica.parameters()} == {dtype}
        hosted = hosted_value(server, net)
        assert {each.dtype for each in hosted.parameters()} == {torch.float32}
        for mine, theirs in zip(replica.parameters(), hosted.parameters(), strict=True):
            assert torch.equal(mine, theirs.to(dtype))


async def test_gradients_of_any_strides_are_pushed() -> None:
    async with joined() as (server, (ps,)):
        net = await ps.module(nn.Linear, 4, 4, name="net", seed=1)
        replica = await net.replica()
        opt = await ps.optimizer(optim.SGD, net.parameters(), lr=1.0)
        before = replica.module.weight.detach().clone()
        replica.module.weight.grad = torch.arange(16.0).view(4, 4).t()
        replica.module.bias.grad = torch.ones(1).expand(4)
        await replica.push(opt, pull=False)
        assert torch.equal(replica.module.weight, before)
        assert torch.equal(hosted_value(server, net).weight, before - torch.arange(16.0).view(4, 4).t())
        # Its own step makes what it has not pulled stale.
        replica.module.weight.grad = torch.zeros(4, 4)
        assert (await replica.push(opt)).staleness == 1


async def test_a_backward_through_a_forward_from_before_a_push_is_exact() -> None:
    async with joined() as (_, (ps,)):
        net = await ps.module(Wide, name="net", seed=1)
        replica = await net.replica()
        opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
        local = copy.deepcopy(replica.module)
        losses = [module(torch.ones(1, 64)).square().sum() for module in (replica, local)]
        replica(torch.ones(1, 64)).sum().backward()
        await replica.push(opt)
        for loss in losses:
            loss.backward()
        for mine, theirs in zip(replica.parameters(), local.parameters(), strict=True):
            assert torch.equal(mine.grad, theirs.grad)


async def test_old_messages_are_not_kept_alive_by_parameters_that_did_not_change() -> None:
    async with joined() as (_, (ps,)):
        net = await ps.module(Wide, 512, name="net", seed=1)
        replica = await net.replica()
        first = replica.module.layers[0].weight
        opt = await ps.optimizer(optim.SGD, [first_remote(net)], lr=0.1)
        storage = replica.module.layers[1].weight.data_ptr()
        first.grad = torch.ones_like(first)
        await replica.push(opt)
        moved = replica.module.layers[1].weight.data_ptr()
        assert moved != storage
        first.grad = torch.ones_like(first)
        await replica.push(opt)
        assert replica.module.layers[1].weight.data_ptr() == moved


def first_remote(net: tc.RemoteModule) -> tc.RemoteParameter:
    return net.parameters()[0]


async def test_a_plain_program_waits_for_replicas_in_its_own_thread() -> None:
    async with joined() as (server, _):

        def train(address: str) -> tuple[Any, Any]:
            with tc.connect(address) as ps:
                net = ps.module(Wide, name="net", seed=1)
                opt = ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
                replica = net.replica()
                for step in range(3):
                    replica(torch.ones(1, 64)).square().mean().backward()
                    assert replica.push(opt) == {"ps0": step + 1}
                assert replica.pull() == 0 and isinstance(replica, nn.Module)
                return bits(replica.module.state_dict()), bits(net.state_dict())

        mine, theirs = await asyncio.to_thread(train, server.address)
        assert mine == theirs
