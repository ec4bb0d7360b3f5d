"""An owner trains on its device as local torch does there. The CPU stands for machines without CUDA."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import trainer_client as tc
from ps_service import hosted
from ps_service.engine import Engine
from ps_service.hosting.allowlist import AllowList
from ps_service.server import Server
from tests import hosted_models

DEVICES = ["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)]
OPTIMIZERS = [torch.optim.SGD, torch.optim.Adagrad, torch.optim.AdamW]
LAYERS: tuple[tuple[Any, int, int], ...] = ((nn.Linear, 16, 32), (nn.Linear, 32, 4))

# Torch says so when the first thread that computes there is one of its autograd engine.
pytestmark = pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS, but there was no current CUDA context")

Layers = list[tc.RemoteModule]


@pytest.fixture(autouse=True)
def repeatable() -> None:
    """Kernels of CUDA add in the same order in every run."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


@pytest.fixture
async def owner(device: torch.device, tmp_path: Path) -> AsyncIterator[Server]:
    async with started(device, tmp_path) as server:
        yield server


def started(device: torch.device, folder: Path) -> Server:
    return Server(
        Engine("ps0", AllowList([hosted_models, sys.modules[__name__]]), device=device, data_dir=folder), direct_port=0
    )


def batch(i: int) -> torch.Tensor:
    return torch.randn(8, 16, generator=torch.Generator().manual_seed(i))


async def layers(ps: tc.Client) -> Layers:
    return [await ps.module(kind, *sizes, name=str(sizes), seed=i) for i, (kind, *sizes) in enumerate(LAYERS)]


async def one_pass(
    ps: tc.Client, net: Layers, opt: tc.DistributedOptimizer, x: torch.Tensor, apart: bool = False
) -> float:
    async with ps.context() as ctx:
        for layer in net:
            x = torch.tanh(await layer(x))
        loss = x.square().sum()
        if apart:
            await ctx.backward(loss)
            await opt.step(ctx)
        else:
            await ctx.backward(loss, step=opt)
    return loss.item()


def local(optimizer: Any, passes: int, device: torch.device) -> nn.Module:
    """What local torch trains in as many passes, with the layers on the device, and all else on the CPU."""
    made: list[Any] = []
    for i, (kind, *sizes) in enumerate(LAYERS):
        torch.manual_seed(i)
        made.append(kind(*sizes).to(device))
    net = nn.Sequential(*made)
    opt = optimizer(net.parameters(), lr=0.05)
    for i in range(passes):
        x = batch(i)
        for layer in made:
            x = torch.tanh(layer(x.to(device)).cpu())
        x.square().sum().backward()
        opt.step()
        opt.zero_grad()
    return net.cpu()


async def assert_like_local(net: Layers, expected: nn.Module) -> None:
    for layer, of_local in zip(net, expected.children(), strict=True):
        state = await layer.state_dict()
        assert state.keys() == of_local.state_dict().keys()
        for name, value in of_local.state_dict().items():
            torch.testing.assert_close(state[name], value, rtol=0, atol=0)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
async def test_it_trains_as_local_torch_does_on_that_device(
    owner: Server, device: torch.device, optimizer: type[torch.optim.Optimizer]
) -> None:
    async with tc.connect(owner.address) as ps:
        net = await layers(ps)
        opt = await ps.optimizer(optimizer, [p for layer in net for p in layer.parameters()], lr=0.05)
        for i in range(6):
            await one_pass(ps, net, opt, batch(i), apart=i % 2 == 0)
        hosted = owner.engine.registry.find(net[0].ref).value
        assert hosted.weight.device == device
        await assert_like_local(net, local(optimizer, 6, device))


async def test_steps_of_several_trainers_are_all_applied(owner: Server) -> None:
    async def train(seed: int) -> None:
        async with tc.connect(owner.address) as ps:
            net = await layers(ps)
            opt = await ps.optimizer(torch.optim.SGD, [p for layer in net for p in layer.parameters()], lr=0.01)
            for i in range(8):
                await one_pass(ps, net, opt, batch(100 * seed + i))

    await asyncio.gather(*map(train, range(3)))
    async with tc.connect(owner.address) as ps:
        (first, *_) = await layers(ps)
        parameters = owner.engine.registry.find(first.ref).value.parameters()
        assert {owner.engine.parameter_locks.state(each).steps for each in parameters} == {24}


async def test_a_checkpoint_brings_modules_and_optimizers_back_to_the_device(
    device: torch.device, tmp_path: Path
) -> None:
    for first in (0, 3):
        async with started(device, tmp_path) as server, tc.connect(server.address) as ps:
            net = await layers(ps)
            opt = await ps.optimizer(torch.optim.AdamW, [p for layer in net for p in layer.parameters()], lr=0.05)
            for i in range(first, first + 3):
                await one_pass(ps, net, opt, batch(i))
            assert server.engine.registry.find(net[0].ref).value.weight.device == device
            await assert_like_local(net, local(torch.optim.AdamW, first + 3, device))
            await server.drain(1)


@hosted
class Mixed(nn.Linear):
    """A layer whose result lies on the CPU, wherever its parameters are."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).cpu()


async def test_gradients_go_to_the_device_of_the_result(owner: Server) -> None:
    async with tc.connect(owner.address) as ps:
        net = await ps.module(Mixed, 16, 4, seed=1)
        opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1)
        async with ps.context() as ctx:
            await ctx.backward((await net(batch(0))).square().sum(), step=opt)
        state = await net.state_dict()
    torch.manual_seed(1)
    layer = nn.Linear(16, 4)
    before = [each.detach().clone() for each in layer.parameters()]
    layer(batch(0)).square().sum().backward()
    of_local = [each - 0.1 * _gradient(found) for each, found in zip(before, layer.parameters(), strict=True)]
    torch.testing.assert_close(list(state.values()), of_local)


@pytest.mark.parametrize("stays", [False, True], ids=["awaited", "stays"])
async def test_tables_stay_in_the_memory_of_the_cpu(owner: Server, device: torch.device, stays: bool) -> None:
    ids = torch.tensor([5, 7, 5])
    async with tc.connect(owner.address) as ps:
        items = await ps.table("items", 16, tc.tables.SGD(lr=0.5))
        net = await layers(ps)
        opt = await ps.optimizer(torch.optim.SGD, [p for layer in net for p in layer.parameters()], lr=0.05)
        async with ps.context() as ctx:
            before = (await items(ids)).detach()
            rows = items(ids)
            result = await net[0](rows if stays else await rows)
            await ctx.backward(result.square().sum(), step=[opt, items.optimizer])
        torch.manual_seed(0)
        layer = nn.Linear(16, 32).to(device)
        leaf = before.clone().requires_grad_()
        layer(leaf.to(device)).cpu().square().sum().backward()
        assert leaf.grad is not None
        expected = before[:2] - 0.5 * torch.stack([leaf.grad[0] + leaf.grad[2], leaf.grad[1]])
        torch.testing.assert_close(await items(ids[:2]), expected)


async def test_results_on_the_device_are_arguments_of_later_calls(owner: Server, device: torch.device) -> None:
    async with tc.connect(owner.address) as ps:
        net = await layers(ps)
        opt = await ps.optimizer(torch.optim.SGD, [p for layer in net for p in layer.parameters()], lr=0.1)
        async with ps.context() as ctx:
            await ctx.backward((await net[1](net[0](batch(0)))).square().sum(), step=opt)
        states = [await layer.state_dict() for layer in net]
    of_local = local(torch.optim.SGD, 0, device).to(device)
    opt_of_local = torch.optim.SGD(of_local.parameters(), lr=0.1)
    of_local(batch(0).to(device)).cpu().square().sum().backward()
    opt_of_local.step()
    expected = [layer.state_dict() for layer in of_local.cpu().children()]
    torch.testing.assert_close(states, expected)


@pytest.mark.parametrize("codec", [None, tc.codecs.TopK(0.5), tc.codecs.Int8()], ids=str)
async def test_replicas_push_to_the_device(owner: Server, device: torch.device, codec: Any) -> None:
    async with tc.connect(owner.address) as ps:
        (net, _) = await layers(ps)
        opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.5)
        replica = await net.replica(compress=codec, error_feedback=False)
        before = [each.detach().clone() for each in replica.parameters()]
        for each in replica.parameters():
            each.grad = torch.zeros_like(each)
            each.grad.flatten()[::2] = 1.0
        await replica.push(opt)
        assert owner.engine.registry.find(net.ref).value.weight.device == device
        for was, each in zip(before, replica.parameters(), strict=True):
            expected = was.clone()
            expected.flatten()[::2] -= 0.5
            torch.testing.assert_close(each.detach(), expected)


def _gradient(parameter: nn.Parameter) -> torch.Tensor:
    assert parameter.grad is not None
    return parameter.grad
