"""Owners end between the steps of a list of optimizers: all of these step with gradients of one attempt of the pass."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn, optim

import trainer_client as tc
from tests.integration.restarting import Owner
from tests.integration.restarts.test_killed_tables import rows_of
from tests.integration.support import bits

NAMES = ("ps0", "ps1")
STEPS = 2
End = Callable[[Owner], Awaitable[None]]
Do = Callable[[], Awaitable[Any]]


async def killed(owner: Owner) -> None:
    await owner.crash()


async def stopped(owner: Owner) -> None:
    """In order, with a pass that is still open when the time for that is over."""
    await owner.restart(0.0)


def batch(i: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(i)
    return torch.randn(8, 4, generator=generator), torch.randint(20, (8,), generator=generator)


class Model:
    """What is trained, a list of optimizers, and what both of them come to."""

    def __init__(self, ps: tc.Client) -> None:
        self.ps = ps
        self.repeated = 0
        self.optimizers: list[Any] = []
        self.local = nn.Linear(4, 4)
        with torch.no_grad():
            self.local.weight.fill_(0.5)
            self.local.bias.zero_()

    async def layer(self, owner: str) -> tuple[Any, Any]:
        net = await self.ps.module(nn.Linear, 4, 4, name=f"net-{owner}", owner=owner, seed=1)
        return net, await self.ps.optimizer(optim.Adam, net.parameters(), lr=0.1)

    async def rows(self, *owners: str) -> tc.tables.Table:
        return await self.ps.table("items", 4, tc.tables.Adagrad(0.5), owners=owners, seed=2)

    async def begin(self) -> None: ...

    async def forward(self, inputs: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    async def state(self) -> Any:
        raise NotImplementedError

    async def train(self, i: int) -> None:
        attempts = 0

        async def one(ctx: tc.Context) -> None:
            nonlocal attempts
            attempts += 1
            await ctx.backward((await self.forward(*batch(i))).square().sum(), step=self.optimizers)

        await self.ps.run(one)
        self.repeated += attempts - 1


class LayerAndTable(Model):
    """The rows of the table are on both owners, and the layer is on one of them."""

    async def begin(self) -> None:
        self.net, opt = await self.layer("ps0")
        self.table = await self.rows(*NAMES)
        self.optimizers = [opt, self.table.optimizer]

    async def forward(self, inputs: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return await self.net(inputs) + await self.table(ids)

    async def state(self) -> Any:
        return bits(await self.net.state_dict()), await rows_of(self.table)


class Layers(Model):
    """Each owner has a layer with an optimizer of its own."""

    async def begin(self) -> None:
        layers = [await self.layer(name) for name in NAMES]
        self.nets = [net for net, _ in layers]
        self.optimizers = [opt for _, opt in layers]

    async def forward(self, inputs: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return await self.nets[1](await self.nets[0](inputs))

    async def state(self) -> Any:
        return [bits(await net.state_dict()) for net in self.nets]


class LocalLayerAndTable(Model):
    """One owner alone, and before it parameters of this process."""

    async def begin(self) -> None:
        self.table = await self.rows("ps1")
        mine = await self.ps.optimizer(optim.Adam, self.local.parameters(), lr=0.1)
        self.optimizers = [mine, self.table.optimizer]

    async def forward(self, inputs: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return self.local(inputs) * await self.table(ids)

    async def state(self) -> Any:
        return bits(dict(self.local.state_dict())), await rows_of(self.table)


class JointOptimizerAndLayer(Model):
    """One owner alone; an optimizer of the list steps a table and a layer together."""

    async def begin(self) -> None:
        self.net, _ = await self.layer("ps1")
        self.other = await self.ps.module(nn.Linear, 4, 4, name="other", owner="ps1", seed=3)
        self.table = await self.rows("ps1")
        joint = await self.ps.optimizer(optim.SGD, [*self.other.parameters(), self.table], lr=0.1)
        opt = await self.ps.optimizer(optim.SGD, self.net.parameters(), lr=0.1, name="sgd")
        self.optimizers = [joint, opt]

    async def forward(self, inputs: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return await self.net(await self.other(inputs)) * await self.table(ids)

    async def state(self) -> Any:
        return [bits(await net.state_dict()) for net in (self.net, self.other)], await rows_of(self.table)


def before_steps_of(optimizer: Any, do: Do) -> None:
    """Does something each time before an optimizer steps, and after those before it in the list have."""

    def patched(step: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
        async def later(*args: Any, **more: Any) -> Any:
            await do()
            return await step(*args, **more)

        return later

    for name in ("step", "step_accepted"):
        setattr(optimizer, name, patched(getattr(optimizer, name)))


@pytest.fixture
async def both(tmp_path: Path) -> AsyncIterator[list[Owner]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(Owner(tmp_path / name, name, durability="always")) for name in NAMES]


async def undisturbed(kind: type[Model], folder: Path) -> Any:
    async with AsyncExitStack() as stack:
        owners = [await stack.enter_async_context(Owner(folder / name, name)) for name in NAMES]
        model = kind(await stack.enter_async_context(tc.connect(*(each.address for each in owners))))
        await model.begin()
        for i in range(STEPS):
            await model.train(i)
        return await model.state()


@pytest.mark.parametrize(
    ("kind", "end"),
    [
        (LayerAndTable, killed),
        (Layers, killed),
        (LocalLayerAndTable, killed),
        (JointOptimizerAndLayer, killed),
        (LayerAndTable, stopped),
    ],
)
async def test_it_is_as_if_no_owner_had_ended(both: list[Owner], tmp_path: Path, kind: type[Model], end: End) -> None:
    async with tc.connect(*(each.address for each in both)) as ps:
        model = kind(ps)
        await model.begin()
        left = 0

        async def end_both() -> None:
            nonlocal left
            if left:
                left -= 1
                await asyncio.gather(*(end(each) for each in both))

        before_steps_of(model.optimizers[1], end_both)
        for i in range(STEPS):
            left = 1
            await model.train(i)
            assert not left
        assert await model.state() == await undisturbed(kind, tmp_path / "undisturbed")
        assert not any(each.server.engine.prepared.all() for each in both)


@pytest.mark.parametrize("in_thread", [False, True])
async def test_none_steps_if_an_owner_refuses_the_gradients_of_one(both: list[Owner], in_thread: bool) -> None:
    async with tc.connect(*(each.address for each in both)) as ps:
        nets = [await ps.module(nn.Linear, 4, 1, name=f"net-{name}", owner=name) for name in NAMES]
        first = await ps.optimizer(optim.SGD, nets[0].parameters(), lr=0.1)
        second = await ps.optimizer(optim.SGD, nets[1].parameters(), lr=0.1, non_finite="refuse")

        async def step(factor: float) -> Any:
            async with ps.context() as ctx:
                loss = (await nets[0](torch.ones(1, 4))).sum() + (await nets[1](torch.ones(1, 4))).sum() * factor
                if in_thread:
                    return await asyncio.to_thread(ctx.propagate, loss, step=[first, second])
                return await ctx.backward(loss, step=[first, second])

        before = [bits(await net.state_dict()) for net in nets]
        with pytest.raises(tc.errors.NonFiniteGradientError):
            await step(torch.inf)
        assert [bits(await net.state_dict()) for net in nets] == before
        assert await step(1.0) == [{"ps0": 1}, {"ps1": 1}]


async def test_values_that_an_owner_refuses_step_none_of_the_list(both: list[Owner]) -> None:
    async with tc.connect(*(each.address for each in both)) as ps:
        nets = [await ps.module(nn.Linear, 2, 2, owner=name) for name in reversed(NAMES)]
        first, second = [await ps.optimizer(optim.SGD, net.parameters(), lr=0.1) for net in nets]
        for value, version in ((1, 1), (torch.ones(2), 0), (3, 2)):
            async with ps.context() as ctx:
                loss = (await nets[1](await nets[0](torch.ones(1, 2)))).sum()
                stepping = ctx.backward(loss, step=[first, second], values={"n": value})
                if version:
                    assert [list(each.values()) for each in await stepping] == [[version], [version]]
                else:
                    with pytest.raises(tc.errors.InvalidArgumentError):
                        await stepping
        assert await first.values() == {"n": 2.0} and await second.values() == {}
