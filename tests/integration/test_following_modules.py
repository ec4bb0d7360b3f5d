"""Programs that follow the parameters of a module, and go on from a version of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import trainer_client as tc


async def first_change(net: tc.RemoteModule, since: Any = None) -> tc.ModuleChange:
    change = await net.following(since, 0).round()
    assert change is not None, "nothing has changed"
    return change


async def layer(ps: tc.Client, **more: Any) -> tc.RemoteModule:
    return await ps.module(nn.Linear, 3, 2, name="net", **more)


async def test_a_follower_that_goes_on_gets_what_has_changed_since(ps: tc.Client) -> None:
    net = await layer(ps)
    opt = await ps.optimizer(torch.optim.SGD, [net.parameter("bias")], lr=0.5)
    first = await first_change(net)
    assert first.parameters.keys() == {"weight", "bias"}
    async with ps.context() as ctx:
        await ctx.backward((await net(torch.ones(1, 3))).sum(), step=opt)
    second = await first_change(net, first.version)
    assert second.parameters.keys() == {"bias"}
    assert torch.equal(second.parameters["bias"], first.parameters["bias"] - 0.5)


@pytest.mark.parametrize("how", ["put in its place", "deleted before", "with steps"])
async def test_a_version_is_of_one_module_and_not_of_another_with_its_name(ps: tc.Client, how: str) -> None:
    net = await layer(ps, seed=1)
    seen = await first_change(net)
    if how == "deleted before":
        await ps.delete(net)
    made = await layer(ps, seed=2, replace=how != "deleted before")
    if how == "with steps":
        opt = await ps.optimizer(torch.optim.SGD, [made.parameter("bias")], lr=0.5)
        async with ps.context() as ctx:
            await ctx.backward((await made(torch.ones(1, 3))).sum(), step=opt)
    change = await first_change(await ps.attach("net"), seen.version)
    state = await made.state_dict()
    assert change.parameters.keys() == state.keys()
    assert all(torch.equal(change.parameters[name], state[name]) for name in state)
