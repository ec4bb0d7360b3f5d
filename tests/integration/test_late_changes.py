"""What a backward changes in a hosted module is there for the next call, as it is locally."""

from __future__ import annotations

import pytest
import torch

from tests.integration.odd_training import train_both, training
from tests.restructuring_modules import SIZE, LateCounting
from tests.training import pins, twin

MODELS = "tests.restructuring_modules"


@pytest.mark.parametrize("frozen", [False, True], ids=["", "frozen"])
async def test_attributes_set_by_backward_hooks_stay(frozen: bool) -> None:
    async with training() as (server, ps):
        net = await ps.module(f"{MODELS}.LateCounting", frozen)
        local = await twin(net, LateCounting(frozen))
        if not frozen:
            await train_both(ps, net, local, passes=4)
        else:
            for _ in range(3):
                ours, theirs = (torch.ones(2, SIZE, requires_grad=True) for _ in range(2))
                async with ps.context() as ctx:
                    await ctx.backward((await net(ours)).sum())
                    local(theirs).sum().backward()
                    torch.testing.assert_close((await ctx.get_gradients())[ours], theirs.grad)
        assert await net.seen() == pytest.approx(local.seen())
        assert pins(server) == 0


async def test_each_backward_of_a_call_finds_the_changes_of_others() -> None:
    async with training() as (_, ps):
        net = await ps.module(f"{MODELS}.LateCounting")
        local = await twin(net, LateCounting())
        x = torch.ones(2, SIZE, requires_grad=True)
        async with ps.context() as ctx:
            one, other = (await net(x)).sum(), (await net(x)).sum()
            mine, theirs = local(x).sum(), local(x).sum()
            for ours, wanted in ((one, mine), (other, theirs), (one, mine)):
                await ctx.backward(ours, retain_graph=True)
                wanted.backward(retain_graph=True)
            assert await net.seen() == pytest.approx(local.seen())
