"""Hooks of hosted modules act as they do locally, or are refused."""

from __future__ import annotations

import pytest
import torch

import trainer_client as tc
from ps_service.passes.binding import FIRST_EXAMINED
from tests import hooked_modules
from tests.integration.odd_training import train_both, training
from tests.odd_modules import SIZE
from tests.training import twin

MODELS = "tests.hooked_modules"


@pytest.mark.parametrize(
    ("early", "reason"),
    [("several", r"register_multi_grad_hook\) at parameter 'layer\.weight'"), ("node", r"node .* 'layer\.bias'")],
)
async def test_hooks_that_would_never_run_are_refused_when_the_module_is_made(early: str, reason: str) -> None:
    async with training() as (_, ps):
        with pytest.raises(tc.errors.InvalidArgumentError, match=reason):
            await ps.module(f"{MODELS}.HookedOddly", early)


@pytest.mark.parametrize("early", ["", "hook"])
@pytest.mark.parametrize("late", ["post-accumulate", "node"])
async def test_hooks_that_a_call_leaves_and_that_would_never_run_are_refused(early: str, late: str) -> None:
    x = torch.ones(2, SIZE)
    async with training() as (_, ps):
        net = await ps.module(f"{MODELS}.HookedOddly", early, late)
        async with ps.context() as ctx:
            for _ in range(FIRST_EXAMINED + 2):
                with pytest.raises(
                    tc.errors.InvalidArgumentError, match=r"forward .*has registered a hook at .*constructor"
                ):
                    await net(x)
            assert await ctx.get_gradients() == {}


async def test_a_hook_that_a_call_leaves_acts_in_later_calls() -> None:
    async with training() as (_, ps):
        net = await ps.module(f"{MODELS}.HookedOddly", "hook")
        local = await twin(net, hooked_modules.HookedOddly("hook"))
        for _ in range(2):
            await net.install()
            local.install()
            await train_both(ps, net, local)


@pytest.mark.parametrize(
    ("early", "late"),
    [("any of several", ""), ("", "removed"), ("", "results"), ("", "hook")],
)
async def test_hooks_that_can_run_run_as_often_as_they_do_locally(early: str, late: str) -> None:
    async with training() as (_, ps):
        net = await ps.module(f"{MODELS}.HookedOddly", early, late)
        local = await twin(net, hooked_modules.HookedOddly(early, late))
        await train_both(ps, net, local)
        assert await net.noted() == local.seen


async def test_hooks_of_modules_act_as_they_do_locally() -> None:
    async with training() as (_, ps):
        net = await ps.module(f"{MODELS}.HookedModule")
        await train_both(ps, net, await twin(net, hooked_modules.HookedModule()))
