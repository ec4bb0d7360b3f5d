"""What the tests of policies over several owners share: trainers of a layer on each of several owners."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import NamedTuple

import torch
from torch import nn, optim

import trainer_client as tc
from ps_service.server import Server
from ps_service.training.optimizers import HostedOptimizer
from tests.training import apart, owners
from trainer_client.session.stepped import Stepped


class Trainer(NamedTuple):
    """A trainer with its handles: one layer on each owner, applied one after the other."""

    client: tc.Client
    nets: list[tc.RemoteModule]
    opt: tc.DistributedOptimizer

    async def step(self, x: torch.Tensor, joined: bool = False) -> Stepped:
        """A forward through all layers, a backward and a step of the mean of squares."""
        return await apart(self._step(x, joined))

    async def loss(self, x: torch.Tensor) -> torch.Tensor:
        for net in self.nets:
            x = await net(x)
        return x.square().mean()

    async def _step(self, x: torch.Tensor, joined: bool) -> Stepped:
        async with self.client.context() as ctx:
            loss = await self.loss(x)
            if joined:
                return await ctx.backward(loss, step=self.opt)
            await ctx.backward(loss)
            return await self.opt.step(ctx)


async def begun(
    client: tc.Client, names: Sequence[str], policy: tc.policies.Policy | None, **options: object
) -> Trainer:
    """A trainer of the layers and the optimizer."""
    nets = [
        await client.module("torch.nn.Linear", 3, 3, name=f"net-{name}", seed=place, owner=name)
        for place, name in enumerate(names)
    ]
    parameters = [parameter for net in nets for parameter in net.parameters()]
    options = {"lr": 0.1, "momentum": 0.9, **options}
    opt = await client.optimizer(optim.SGD, parameters, policy=policy, **options)  # type: ignore[arg-type]
    return Trainer(client, nets, opt)


@asynccontextmanager
async def trainers(
    count: int, policy: tc.policies.Policy | None, places: int = 2, **options: object
) -> AsyncIterator[tuple[list[Server], list[Trainer]]]:
    """Owners, and trainers of one layer on each of them."""
    names = [f"ps{place}" for place in range(places)]
    async with owners(*names) as servers, AsyncExitStack() as stack:
        made = []
        for _ in range(count):
            client = await stack.enter_async_context(tc.connect(*(each.address for each in servers)))
            made.append(await begun(client, names, policy, **options))
        yield servers, made


def batches(count: int, rows: int = 4) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(count)
    return [torch.randn(rows, 3, generator=generator) for _ in range(count)]


async def local(trainer: Trainer) -> tuple[nn.Sequential, optim.SGD]:
    """The same layers and optimizer here."""
    net = nn.Sequential(*(nn.Linear(3, 3) for _ in trainer.nets))
    for layer, handle in zip(net, trainer.nets, strict=True):
        layer.load_state_dict(await handle.state_dict())
    return net, optim.SGD(net.parameters(), lr=0.1, momentum=0.9)


async def same_nets(trainer: Trainer, net: nn.Sequential) -> None:
    """Holds the layers on the owners to those here."""
    for layer, handle in zip(net, trainer.nets, strict=True):
        for name, value in (await handle.state_dict()).items():
            torch.testing.assert_close(value, layer.state_dict()[name])


def hosted(server: Server) -> HostedOptimizer:
    (found,) = [each.value for each in server.engine.registry.objects() if isinstance(each.value, HostedOptimizer)]
    return found


def waiting(server: Server) -> int:
    """How many offers wait on the owner that decides."""
    return len(hosted(server).aggregator._offered)


def held(server: Server) -> int:
    """How many offers an owner that follows holds; -1 while its copies of gradients are not those of these offers."""
    following = hosted(server).aggregator.following
    assert following is not None
    copies, offers = len(following._copies), len(following._follower.held)
    return offers if copies == offers else -1


async def together(*steps: object) -> list[Stepped]:
    return await asyncio.gather(*steps)  # type: ignore[call-overload,no-any-return]
