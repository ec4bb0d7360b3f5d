"""What the tests of replicas over several owners share: trainers of a local model with a replica for each owner."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple

import torch
from torch import nn, optim

import trainer_client as tc
from ps_service.server import Server
from tests.training import owners
from trainer_client.session.stepped import Stepped


class Pusher(NamedTuple):
    """A trainer: a layer on each owner, their replicas in one model, and an optimizer of all."""

    client: tc.Client
    nets: list[tc.RemoteModule]
    opt: tc.DistributedOptimizer
    model: tc.Replicas

    async def step(self, x: torch.Tensor, **push: Any) -> Stepped | None:
        """A forward, a backward of the mean of squares, and a push."""
        self.model(x).square().mean().backward()
        return await self.model.push(self.opt, **push)


async def begun(
    client: tc.Client, names: Sequence[str], policy: tc.policies.Policy | None = None, overlap: int = 0, **more: Any
) -> Pusher:
    """A trainer of the layers."""
    nets = [
        await client.module("torch.nn.Linear", 3, 3, name=f"net-{place}", seed=place, owner=name)
        for place, name in enumerate(names)
    ]
    options = {key: more.pop(key) for key in ("non_finite",) if key in more}
    opt = await client.optimizer(
        optim.SGD, [each for net in nets for each in net.parameters()], lr=0.1, momentum=0.9, policy=policy, **options
    )
    model = client.replicas(nn.Sequential(*[await net.replica(**more) for net in nets]), overlap=overlap)
    return Pusher(client, nets, opt, model)


@asynccontextmanager
async def pushers(
    count: int, policy: tc.policies.Policy | None = None, places: Sequence[str] = ("ps0", "ps1"), **more: Any
) -> AsyncIterator[tuple[list[Server], list[Pusher]]]:
    """Owners, and trainers of one layer for each place."""
    async with owners(*dict.fromkeys(places)) as servers, AsyncExitStack() as stack:
        made = []
        for _ in range(count):
            client = await stack.enter_async_context(tc.connect(*(each.address for each in servers)))
            made.append(await begun(client, places, policy, **more))
        yield servers, made


def local(pusher: Pusher) -> tuple[nn.Sequential, optim.SGD]:
    """The same layers and optimizer here."""
    net = nn.Sequential(*(nn.Linear(3, 3) for _ in pusher.nets))
    with torch.no_grad():
        for mine, theirs in zip(net.parameters(), pusher.model.parameters(), strict=True):
            mine.copy_(theirs)
    return net, optim.SGD(net.parameters(), lr=0.1, momentum=0.9)


def learn(net: nn.Module, opt: optim.Optimizer, x: torch.Tensor, factor: float = 1.0) -> None:
    opt.zero_grad()
    (net(x).square().mean() * factor).backward()
    opt.step()


async def same_everywhere(pusher: Pusher, net: nn.Module) -> None:
    """Holds the model here, and the layers on the owners, to a local one."""
    expected = list(net.parameters())
    hosted = [value for each in pusher.nets for value in (await each.state_dict()).values()]
    for mine, theirs, wanted in zip(pusher.model.parameters(), hosted, expected, strict=True):
        assert torch.equal(mine, theirs)
        torch.testing.assert_close(mine, wanted)


def batches(count: int, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * count + seed)
    return [torch.randn(4, 3, generator=generator) for _ in range(count)]
