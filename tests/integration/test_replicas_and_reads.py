"""Tests of what a pull sees of the steps of others, and of gradients that are compressed."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest
import torch
from torch import nn, optim

import trainer_client as tc
from ps_wire.compression.choice import Choice
from tests import autograd_models
from tests.autograd_models import PATIENCE, Parallel
from tests.integration.replica_models import Net, Wide
from tests.integration.test_replicas import hosted_optimizer, images, joined, same
from tests.training import MODELS, OPTIMIZERS, hosted_value, owners


def give_ones(module: nn.Module) -> None:
    """Gradients of ones."""
    for each in module.parameters():
        each.grad = torch.ones_like(each)


async def test_a_consistent_pull_never_mixes_two_versions() -> None:
    async with joined(2) as (server, (one, two)):
        net, theirs = [await ps.module(Wide, 96, 6, name="net", seed=1) for ps in (one, two)]
        await net.load_state_dict({name: torch.zeros_like(each) for name, each in (await net.state_dict()).items()})
        opt = await two.optimizer(optim.SGD, theirs.parameters(), lr=1.0)
        replica, other = await net.replica(), await theirs.replica()
        seen = set()

        async def step() -> None:
            for _ in range(60):
                give_ones(other)
                await other.push(opt, pull=False)

        task = asyncio.create_task(step())
        while not task.done():
            await replica.pull()
            values = {float(value) for each in replica.parameters() for value in each.detach().aminmax()}
            assert len(values) == 1, values
            seen |= values
        await task
        await replica.pull()
        assert same(replica, hosted_value(server, net)) and len(seen) > 2


@pytest.mark.parametrize("reads", ["consistent", "inconsistent"])
async def test_what_was_pulled_in_the_middle_of_a_step_is_pulled_again(
    reads: Any, request: pytest.FixtureRequest
) -> None:
    what = request.node.name
    async with owners("ps0") as (server,), tc.connect(server.address) as one, tc.connect(server.address) as two:
        net, theirs = [await ps.module(f"{MODELS}.Parallel", 4, name="net") for ps in (one, two)]
        opt = await two.optimizer(
            f"{OPTIMIZERS}.Pausing", theirs.parameters(), reads="inconsistent", lr=0.5, what=what, at=1
        )
        replica, other = await net.replica(reads=reads), await theirs.replica()
        before = copy.deepcopy(replica.module)
        give_ones(other)
        push = other.push(opt)
        assert await asyncio.to_thread(autograd_models.event(f"{what} has begun").wait, PATIENCE)
        await replica.pull()
        first, second = [not torch.equal(*pair) for pair in zip(replica.parameters(), before.parameters(), strict=True)]
        assert first and not second
        autograd_models.event(f"{what} may go on").set()
        await push
        await replica.pull()
        assert same(replica, hosted_value(server, net)) and same(replica, other)


async def test_an_inconsistent_pull_does_not_wait_for_a_consistent_step(request: pytest.FixtureRequest) -> None:
    what = request.node.name
    async with owners("ps0") as (server,), tc.connect(server.address) as one, tc.connect(server.address) as two:
        net, theirs = [await ps.module(f"{MODELS}.Parallel", 4, name="net") for ps in (one, two)]
        opt = await two.optimizer(f"{OPTIMIZERS}.Pausing", theirs.parameters(), lr=0.5, what=what, at=1)
        replica, other = await net.replica(), await theirs.replica()
        give_ones(other)
        push = other.push(opt)
        assert await asyncio.to_thread(autograd_models.event(f"{what} has begun").wait, PATIENCE)
        waiting = replica.pull()
        await replica.pull(reads="inconsistent")
        assert not waiting.settled
        autograd_models.event(f"{what} may go on").set()
        await push
        # It was asked for before the other pull, whose answer came first.
        assert await waiting == 0
        await replica.pull()
        assert same(replica, hosted_value(server, net)) and type(replica.module) is Parallel


async def train(codec: Any, lr: float, feedback: bool = True) -> float:
    """How far a linear model is from its target after sixty steps."""
    async with joined() as (server, (ps,)):
        net = await ps.module(nn.Linear, 32, 32, bias=False, name="net", seed=1)
        opt = await ps.optimizer(optim.SGD, net.parameters(), lr=lr)
        replica = await net.replica(compress=codec, error_feedback=feedback)
        target = torch.randn(32, 32, generator=torch.Generator().manual_seed(2))
        for _ in range(60):
            (replica.module.weight - target).square().sum().mul(0.5).backward()
            await replica.push(opt)
        assert same(replica, hosted_value(server, net)) and hosted_optimizer(server).version == 60
        return float((replica.module.weight.detach() - target).norm() / target.norm())


async def test_nearly_exact_codecs_train_like_none() -> None:
    plain = await train(None, lr=0.02)
    for codec in (tc.codecs.FP16(), tc.codecs.BF16(), tc.codecs.Int8()):
        assert abs(await train(codec, lr=0.02) - plain) < 0.01, codec


async def test_error_feedback_sends_later_what_was_left_out() -> None:
    choice = Choice({"weight": tc.codecs.RandomK(0.1)})
    assert await train(choice, lr=0.02) < 0.5 * await train(choice, lr=0.02, feedback=False)


async def test_what_the_owner_decodes_and_the_residual_are_the_gradient() -> None:
    async with joined() as (server, (ps,)):
        net = await ps.module(Net, 40, name="net", seed=1)
        opt = await ps.optimizer(optim.SGD, net.parameters(), lr=1.0)
        replica = await net.replica(compress=Choice({"norm.*": None, "default": tc.codecs.TopK(0.1)}, min_numel=4))
        before = {name: each.detach().clone() for name, each in replica.module.named_parameters()}
        replica(images(1)).square().sum().backward()
        gradients = {name: each.grad.clone() for name, each in replica.module.named_parameters()}
        await replica.push(opt)
        feedback = replica.exchange._feedback
        assert feedback is not None
        for name, each in hosted_value(server, net).named_parameters():
            left = feedback.residual(name)
            arrived = before[name] - each
            torch.testing.assert_close(gradients[name], arrived if left is None else arrived + left)
            assert (left is None) == name.startswith("norm.")


@pytest.mark.parametrize("overlap", [0, 1])
async def test_residuals_of_parameters_that_an_optimizer_does_not_step_are_as_before(overlap: Any) -> None:
    async with joined() as (server, (ps,)):
        net = await ps.module(Wide, 8, 2, name="net", seed=1)
        parts = [[each for each in net.parameters() if f"layers.{i}." in each.name] for i in range(2)]
        opts = [await ps.optimizer(optim.SGD, part, lr=1.0) for part in parts]
        replica = await net.replica(compress=Choice(tc.codecs.TopK(0.25), min_numel=0), overlap=overlap)
        before = {name: each.detach().clone() for name, each in replica.module.named_parameters()}
        given = {name: torch.zeros_like(each) for name, each in before.items()}
        for i in range(3):
            replica(torch.randn(4, 8, generator=torch.Generator().manual_seed(i))).square().sum().backward()
            for name, each in replica.module.named_parameters():
                given[name] += each.grad
            await replica.push(opts[0], zero_grad=False)
            await replica.push(opts[1])
        await replica.finish()
        assert replica.exchange._feedback is not None
        for name, each in hosted_value(server, net).named_parameters():
            residual = replica.exchange._feedback.residual(name)
            torch.testing.assert_close(before[name] - each + residual, given[name], msg=name)


async def test_residuals_of_parameters_that_are_frozen_on_the_owner_are_as_before() -> None:
    async with joined() as (_, (ps,)):
        net = await ps.module(Wide, 8, 1, name="net", seed=1)
        opt = await ps.optimizer(optim.SGD, net.parameters(), lr=1.0)
        replica = await net.replica(compress=Choice(tc.codecs.TopK(0.25), min_numel=0))
        await net.parameter("layers.0.weight").requires_grad_(False)
        replica(torch.ones(4, 8)).square().sum().backward()
        await replica.push(opt)
        feedback = replica.exchange._feedback
        assert feedback is not None
        assert feedback.residual("layers.0.weight") is None and feedback.residual("layers.0.bias") is not None


@pytest.mark.parametrize("how", ["refused", "dropped", "not finite here"])
async def test_residuals_are_as_before_a_push_that_does_not_count(how: str) -> None:
    async with joined(2) as (_, (one, two)):
        nets = [await ps.module(Wide, 32, 1, name="net", seed=1) for ps in (one, two)]
        policy = tc.policies.Async(stale=tc.policies.Reject(after=0)) if how == "dropped" else None
        opts = [
            await ps.optimizer(optim.SGD, net.parameters(), lr=0.1, non_finite="refuse", policy=policy)
            for ps, net in zip((one, two), nets, strict=True)
        ]
        codec = tc.codecs.TopK(0.1) if how != "refused" else tc.codecs.FP16()
        replica, other = await nets[0].replica(compress=Choice(codec, min_numel=0)), await nets[1].replica()
        name = "layers.0.weight"
        replica(torch.full((1, 32), 1 / 3)).square().sum().backward()
        await replica.push(opts[0])
        assert replica.exchange._feedback is not None
        before = replica.exchange._feedback.residual(name)
        assert before is not None and before.any()
        if how == "refused":
            # Sent before the owner deletes the optimizer.
            await two.delete("net")
            replica(torch.ones(1, 32)).square().sum().backward()
            with pytest.raises((tc.errors.StaleHandleError, tc.errors.UnknownNameError)):
                await replica.push(opts[0])
        elif how == "dropped":
            await other.pull()
            give_ones(other)
            await other.push(opts[1])
            replica(torch.ones(1, 32)).square().sum().backward()
            assert (await replica.push(opts[0])).dropped == "stale"  # type: ignore[union-attr]
        else:
            replica(torch.full((1, 32), float("inf"))).square().sum().backward()
            with pytest.raises(tc.errors.NonFiniteGradientError):
                replica.push(opts[0])
        after = replica.exchange._feedback.residual(name)
        assert after is not None and torch.equal(after, before)


async def test_what_hosted_code_has_written_in_place_is_pulled() -> None:
    async with joined() as (server, (ps,)):
        net = await ps.module(nn.Embedding, 5, 4, max_norm=0.5, name="net", seed=1)
        replica = await net.replica()
        assert await replica.pull() == 0
        await net(torch.arange(5))
        assert await replica.pull() == 1 and same(replica, hosted_value(server, net))
        wide = await ps.module(Wide, 8, name="wide", seed=1)
        copies = await wide.replica()
        await wide.grow(torch.ones(1, 8))
        assert await copies.pull() == 1 and same(copies, hosted_value(server, wide))
        async with ps.context():
            # The forward of a recorded call pins the parameter, which is written where it is.
            await wide.grow(torch.ones(1, 8))
        assert await copies.pull() == 1 and same(copies, hosted_value(server, wide))
