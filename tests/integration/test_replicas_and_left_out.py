"""Tests of what codecs leave out of gradients that owners do not step with: several replicas, and passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import optim

import trainer_client as tc
from ps_wire.compression.choice import Choice
from tests.integration.replicas_over_owners import Pusher, batches, pushers

NAMES = ("weight", "bias")


def compressing(pusher: Pusher, names: Sequence[str]) -> list[Any]:
    """What its replicas keep of gradients, by the names of their parameters: nothing of these yet."""
    kept = [each._feedback for each in pusher.model._exchanges]
    assert all(each.residual(name) is None for each in kept for name in names)
    return kept


@pytest.mark.parametrize("policy", [None, tc.policies.Sync(1)], ids=str)
@pytest.mark.parametrize("overlap", [0, 1])
async def test_residuals_of_parameters_that_no_part_of_the_optimizer_steps_are_as_before(
    policy: tc.policies.Policy | None, overlap: int
) -> None:
    async with pushers(1, None, compress=Choice(tc.codecs.TopK(0.3), min_numel=0), overlap=overlap) as (_, (one,)):
        parts = [[each for net in one.nets for each in net.parameters() if each.name == name] for name in NAMES]
        opts = [await one.client.optimizer(optim.SGD, part, lr=1.0, policy=policy) for part in parts]
        before = [each.detach().clone() for each in one.model.parameters()]
        given = [torch.zeros_like(each) for each in before]
        for x in batches(3):
            one.model(x).square().mean().backward()
            for total, each in zip(given, one.model.parameters(), strict=True):
                total += each.grad
            await one.model.push(opts[0], zero_grad=False)
            await one.model.push(opts[1])
        await one.model.finish()
        residuals = [each.residual(name) for each in compressing(one, ()) for name in NAMES]
        now = [value for each in one.nets for value in (await each.state_dict()).values()]
        for old, new, residual, total in zip(before, now, residuals, given, strict=True):
            torch.testing.assert_close(old - new + residual, total)


@pytest.mark.parametrize("joins", [False, True])
async def test_residuals_of_parameters_that_are_frozen_on_an_owner_are_as_before(joins: bool) -> None:
    async with pushers(1, None, compress=Choice(tc.codecs.TopK(0.3), min_numel=0)) as (_, (one,)):
        kept = compressing(one, NAMES)
        await one.nets[1].parameter("weight").requires_grad_(False)
        async with one.client.context() as ctx:
            loss = one.model(batches(1)[0]).square().mean()
            if joins:
                await ctx.backward(loss)
                await one.model.push(one.opt, context=ctx)
        if not joins:
            loss.backward()
            await one.model.push(one.opt)
        assert [[each.residual(name) is None for name in NAMES] for each in kept] == [[False, False], [True, False]]


async def test_a_gradient_that_another_optimizer_of_the_pass_may_step_with_is_sent() -> None:
    async with pushers(1, None, compress=Choice(tc.codecs.TopK(0.3), min_numel=0)) as (_, (one,)):
        parts = [[each for net in one.nets for each in net.parameters() if each.name == name] for name in NAMES]
        opts = [await one.client.optimizer(optim.SGD, part, lr=1.0) for part in parts]
        before = [each.detach().clone() for each in one.model.parameters()]
        async with one.client.context() as ctx:
            await ctx.backward(one.model(batches(1)[0]).square().mean())
            given = [ctx.gradient(each).clone() for each in one.model.parameters()]
            await one.model.push(opts[0], context=ctx)
            await opts[1].step(ctx)
        residuals = [each.residual(name) for each in compressing(one, ()) for name in NAMES]
        now = [value for each in one.nets for value in (await each.state_dict()).values()]
        for old, new, residual, total in zip(before, now, residuals, given, strict=True):
            torch.testing.assert_close(old - new + residual, total)
