"""Training with remote parts gives the loss curves and the parameters of plain torch in one process."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn, optim

import trainer_client as tc
from tests.training import same, same_state, training

STEPS = 4
CLASSES = 3

OPTIMIZERS: dict[str, tuple[type[optim.Optimizer], dict[str, Any]]] = {
    "SGD": (optim.SGD, {"lr": 0.1}),
    "momentum": (optim.SGD, {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 1e-3}),
    "Adam": (optim.Adam, {"lr": 0.02, "amsgrad": True}),
    "AdamW": (optim.AdamW, {"lr": 0.02, "betas": (0.8, 0.99)}),
    "Adagrad": (optim.Adagrad, {"lr": 0.1, "lr_decay": 0.01}),
    "RMSprop": (optim.RMSprop, {"lr": 0.01, "momentum": 0.5, "centered": True}),
}

EVERY = [
    cls
    for cls in vars(optim).values()
    if isinstance(cls, type) and issubclass(cls, optim.Optimizer) and cls not in (optim.Optimizer, optim.LBFGS)
]
"""All but the one that wants to compute the loss itself, several times in a step."""

Forward = Callable[..., Awaitable[torch.Tensor]]


class Parts:
    """The parts of a model: those named by an owner are remote, the others local; each with a twin.

    Args:
        ps: The trainer.
        owners: Where each part shall be.
        modules: The parts as they begin.
    """

    def __init__(self, ps: tc.Client, owners: dict[str, str], modules: dict[str, nn.Module]) -> None:
        self.ps = ps
        self.owners = owners
        self.twins = modules
        self.used: dict[str, Any] = {}

    async def make(self) -> None:
        for name, module in self.twins.items():
            owner = self.owners.get(name)
            if owner is None:
                self.used[name] = copy.deepcopy(module)
                continue
            assert isinstance(module, nn.Linear)
            remote = await self.ps.module("torch.nn.Linear", module.in_features, module.out_features, owner=owner)
            await remote.load_state_dict(module.state_dict())
            self.used[name] = remote

    def parameters(self) -> list[Any]:
        return [parameter for part in self.used.values() for parameter in part.parameters()]

    async def compare(self) -> None:
        for name, part in self.used.items():
            if isinstance(part, nn.Module):
                for key, value in part.state_dict().items():
                    same(value, self.twins[name].state_dict()[key], f"{name}.{key}")
            else:
                await same_state(part, self.twins[name])


async def run(module: Any, *inputs: torch.Tensor) -> torch.Tensor:
    """Calls a module, wherever it is."""
    result = module(*inputs)
    return result if isinstance(result, torch.Tensor) else await result


async def whole(parts: dict[str, Any], x: torch.Tensor) -> torch.Tensor:
    """All of it is one remote layer."""
    return await run(parts["a"], x)


async def chain(parts: dict[str, Any], x: torch.Tensor) -> torch.Tensor:
    """Local, remote, local, remote, and the loss."""
    x = torch.tanh(await run(parts["local"], x))
    x = torch.tanh(await run(parts["a"], x))
    x = torch.relu(await run(parts["middle"], x))
    return await run(parts["b"], x)


async def branches(parts: dict[str, Any], x: torch.Tensor) -> torch.Tensor:
    """Two remote branches at once, one of them used again, and a local one beside them."""
    left, right = await asyncio.gather(run(parts["a"], x), run(parts["b"], x))
    again = await run(parts["a"], torch.sin(right))
    return torch.tanh(left) * right + again + parts["local"](x)


SHAPES: dict[str, tuple[Forward, dict[str, tuple[int, int]], list[dict[str, str]]]] = {
    "whole": (whole, {"a": (6, CLASSES)}, [{"a": "ps0"}]),
    "chain": (
        chain,
        {"local": (6, 5), "a": (5, 5), "middle": (5, 4), "b": (4, CLASSES)},
        [{"a": "ps0", "b": "ps0"}, {"a": "ps0", "b": "ps1"}],
    ),
    "branches": (
        branches,
        {"a": (6, 6), "b": (6, 6), "local": (6, 6)},
        [{"a": "ps0", "b": "ps0"}, {"a": "ps0", "b": "ps1"}],
    ),
}
PLACES = [(shape, n) for shape, (_, _, places) in SHAPES.items() for n in range(len(places))]
# Where the parts are does not matter to an optimizer: one of them is tried with all places, the others with one.
CASES = [(shape, place, "momentum") for shape, place in PLACES]
CASES += [("chain", 1, name) for name in OPTIMIZERS if name != "momentum"]


@pytest.mark.parametrize(
    "shape,place,optimizer", CASES, ids=[f"{each[0]} on {each[1] + 1}, {each[2]}" for each in CASES]
)
async def test_training_gives_the_curve_and_the_parameters_of_plain_torch(
    shape: str, place: int, optimizer: str
) -> None:
    forward, sizes, places = SHAPES[shape]
    cls, options = OPTIMIZERS[optimizer]
    torch.manual_seed(11)
    data = [(torch.randn(8, 6), torch.randint(0, CLASSES, (8,))) for _ in range(STEPS)]
    async with training(*sorted(set(places[place].values()))) as (_, ps):
        parts = Parts(ps, places[place], {name: nn.Linear(*size) for name, size in sizes.items()})
        await parts.make()
        opt = await ps.optimizer(cls, parts.parameters(), **options)
        local_opt = cls([p for part in parts.twins.values() for p in part.parameters()], **options)
        curve = []
        for number, (x, y) in enumerate(data):
            async with ps.context() as ctx:
                loss = F.cross_entropy(await forward(parts.used, x), y)
                await ctx.backward(loss)
                versions = await opt.step(ctx)
            assert versions == dict.fromkeys(places[place].values(), number + 1)
            wanted = F.cross_entropy(await forward(parts.twins, x), y)
            local_opt.zero_grad()
            wanted.backward()
            local_opt.step()
            same(loss.detach(), wanted.detach(), f"loss of step {number}")
            curve.append(wanted.item())
        await parts.compare()
        assert len(set(curve)) == STEPS


@pytest.mark.parametrize("cls", EVERY, ids=lambda cls: cls.__name__)
async def test_every_optimizer_of_torch_makes_its_own_steps(cls: type[optim.Optimizer]) -> None:
    sparse = cls is optim.SparseAdam
    async with training() as (_, ps):
        # A matrix, because one of them takes nothing else.
        made = ("torch.nn.Embedding", 6, 6) if sparse else ("torch.nn.Linear", 6, 6)
        kwargs = {"sparse": True} if sparse else {"bias": False}
        net = await ps.module(*made, **kwargs)
        local = nn.Embedding(6, 6, **kwargs) if sparse else nn.Linear(6, 6, **kwargs)
        local.load_state_dict(await net.state_dict())
        opt, local_opt = await ps.optimizer(cls, net.parameters()), cls(local.parameters())
        for number in range(3):
            x = torch.randint(0, 6, (4,)) if sparse else torch.randn(4, 6)
            async with ps.context() as ctx:
                await ctx.backward((await net(x)).square().sum())
                assert await opt.step(ctx) == {"ps0": number + 1}
            local_opt.zero_grad()
            local(x).square().sum().backward()
            local_opt.step()
            await same_state(net, local)


async def test_a_sparse_table_trains_like_a_local_one() -> None:
    async with training("ps0", "ps1") as (_, ps):
        table = await ps.module("torch.nn.EmbeddingBag", 20, 6, mode="sum", sparse=True)
        head = await ps.module("torch.nn.Linear", 6, CLASSES, owner="ps1")
        twins = nn.EmbeddingBag(20, 6, mode="sum", sparse=True), nn.Linear(6, CLASSES)
        for handle, module in zip((table, head), twins, strict=True):
            module.load_state_dict(await handle.state_dict())
        opts = [
            (await ps.optimizer(cls, handle.parameters(), lr=0.1), cls(module.parameters(), lr=0.1))
            for cls, handle, module in (
                (optim.SparseAdam, table, twins[0]),
                (optim.Adagrad, head, twins[1]),
            )
        ]
        for number in range(STEPS):
            ids, y = torch.randint(0, 20, (4, 3)), torch.randint(0, CLASSES, (4,))
            async with ps.context() as ctx:
                loss = F.cross_entropy(await head(await table(ids)), y)
                await ctx.backward(loss)
                assert (await ctx.get_gradients())[table.parameter("weight")].is_sparse
                await asyncio.gather(*(opt.step(ctx) for opt, _ in opts))
            wanted = F.cross_entropy(twins[1](twins[0](ids)), y)
            for module in twins:
                module.zero_grad()
            wanted.backward()
            for _, local_opt in opts:
                local_opt.step()
            same(loss.detach(), wanted.detach(), f"loss of step {number}")
        await same_state(table, twins[0])
        await same_state(head, twins[1])


async def test_seeds_make_the_numbers_that_they_make_locally() -> None:
    async with training() as (_, ps):
        torch.manual_seed(5)
        before = torch.get_rng_state()
        net = await ps.module("torch.nn.LSTM", 4, 4, seed=7)
        # The generator of the owner's process is left as it was.
        assert torch.equal(torch.get_rng_state(), before)
        torch.manual_seed(7)
        await same_state(net, nn.LSTM(4, 4))
