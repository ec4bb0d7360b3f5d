"""Parameters are frozen and unfrozen through handles."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import trainer_client as tc
from ps_service.engine import Engine
from ps_service.hosting.allowlist import AllowList
from ps_service.server import Server
from tests import odd_modules
from tests.integration.odd_training import MODELS, training
from tests.training import apart, hosted_value, owners

X = torch.ones(2, 3)


async def gradients(ps: tc.Client, net: Any, x: torch.Tensor = X) -> dict[str, torch.Tensor]:
    """The gradients of one pass, by the parameters' names."""
    async with ps.context() as ctx:
        await ctx.backward((await net(x.clone().requires_grad_())).sum())
        found = (await ctx.get_gradients()).items()
        return {handle.name: each for handle, each in found if isinstance(handle, tc.RemoteParameter)}


def flags(server: Server, net: tc.RemoteModule) -> dict[str, bool]:
    return {name: parameter.requires_grad for name, parameter in hosted_value(server, net).named_parameters()}


async def test_a_module_a_parameter_and_a_group_are_frozen_and_unfrozen() -> None:
    async with owners("ps0", "ps1") as servers, tc.connect(*(each.address for each in servers)) as ps:
        net, other = [await ps.module(nn.Linear, 3, 2, owner=owner) for owner in ("ps0", "ps1")]
        weight = net.parameter("weight")
        assert await net.requires_grad_(False) is net
        assert flags(servers[0], net) == {"weight": False, "bias": False}
        assert not weight.requires_grad and not net.parameter("bias").requires_grad, "handles follow"
        assert await gradients(ps, net) == {}
        assert await weight.requires_grad_(True) is weight
        assert weight.requires_grad and not net.parameter("bias").requires_grad
        assert set(await gradients(ps, net)) == {"weight"}
        await ps.requires_grad_([net, *other.parameters()], False)
        assert not any([*flags(servers[0], net).values(), *flags(servers[1], other).values()])
        await ps.requires_grad_([net, other])
        assert set(await gradients(ps, net)) == set(await gradients(ps, other)) == {"weight", "bias"}
        await ps.requires_grad_([])


async def test_frozen_parameters_behave_as_in_torch() -> None:
    async with training() as (_, ps):
        net = await ps.module(nn.Linear, 3, 2)
        local = nn.Linear(3, 2)
        local.load_state_dict(await net.state_dict())
        opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
        local_opt = torch.optim.SGD(local.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
        for frozen in (False, True, True, False):
            await net.parameter("weight").requires_grad_(not frozen)
            local.weight.requires_grad_(not frozen)
            local_opt.zero_grad()
            async with ps.context() as ctx:
                await ctx.backward((await net(X)).square().sum())
                await opt.step(ctx)
            local(X).square().sum().backward()
            local_opt.step()
            for name, value in (await net.state_dict()).items():
                torch.testing.assert_close(value, local.state_dict()[name])


async def test_open_passes_go_on_as_they_began() -> None:
    async with training() as (_, ps):
        net = await ps.module(nn.Linear, 3, 2)
        async with ps.context() as ctx:
            loss = (await net(X)).sum()
            await apart(_frozen(net))
            await ctx.backward(loss)
            assert {handle.name for handle in await ctx.get_gradients()} == {"weight", "bias"}
        assert await gradients(ps, net) == {}


async def _frozen(net: tc.RemoteModule) -> None:
    await net.requires_grad_(False)


async def test_hosted_code_freezes_too() -> None:
    async with training() as (server, ps):
        net = await ps.module(f"{MODELS}.Written")
        await net.freeze(True)
        assert flags(server, net) == {"weight": False, "extra": True}
        assert await gradients(ps, net, torch.ones(odd_modules.SIZE)) == {}
        await net.freeze(False)
        assert set(await gradients(ps, net, torch.ones(odd_modules.SIZE))) == {"weight"}
        await net.freeze_all()
        assert flags(server, net) == {"weight": False, "extra": False}


async def test_an_invalid_freeze_changes_nothing() -> None:
    async with training() as (server, ps):
        net = await ps.module(f"{MODELS}.WithIntegers")
        await net.requires_grad_(False)
        with pytest.raises(tc.errors.InvalidArgumentError, match=r"int64 cannot be trained"):
            await net.requires_grad_(True)
        assert not any(flags(server, net).values())
        assert not net.parameter("weight").requires_grad
        await net.parameter("weight").requires_grad_(True)
        opt = await ps.optimizer(torch.optim.SGD, [net.parameter("weight")], lr=0.1)
        assert opt is not None


async def test_frozen_parameters_survive_a_restart(tmp_path: Path) -> None:
    def server() -> Server:
        return Server(Engine("ps0", AllowList([odd_modules]), data_dir=tmp_path))

    first = server()
    await first.start()
    async with tc.connect(first.address) as ps:
        net = await ps.module(nn.Linear, 3, 2, name="net")
        partly = await ps.module(f"{MODELS}.WithIntegers", name="partly")
        await net.parameter("bias").requires_grad_(False)
        await partly.requires_grad_(False)
        await first.drain(5)
    second = server()
    await second.start()
    try:
        async with tc.connect(second.address) as ps:
            net = await ps.attach("net")
            assert {name: each.requires_grad for name, each in net.named_parameters()} == {
                "weight": True,
                "bias": False,
            }
            assert set(await gradients(ps, net)) == {"weight"}
            assert not any(each.requires_grad for each in (await ps.attach("partly")).parameters())
    finally:
        await second.stop()


async def test_parameters_are_frozen_by_a_blocking_client() -> None:
    async with owners("ps0") as (server,):

        def freeze() -> tuple[bool, bool]:
            with tc.connect(server.address) as ps:
                net = ps.module(nn.Linear, 3, 2)
                net.requires_grad_(False)
                net.parameter("bias").requires_grad_(True)
                ps.requires_grad_([net.parameter("weight")], True)
                net.parameter("bias").requires_grad_(False)
                return net.parameter("weight").requires_grad, net.parameter("bias").requires_grad

        assert await asyncio.to_thread(freeze) == (True, False)
