"""Tests of named objects that move from one owner to another while trainers train."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import trainer_client as tc
from tests.integration.restarting import Owner
from tests.integration.support import bits

DURABLE = "interval:1"


@pytest.fixture
async def addresses(tmp_path: Path) -> AsyncIterator[list[str]]:
    """Where two owners with logs listen."""
    async with AsyncExitStack() as stack:
        made = [
            await stack.enter_async_context(Owner(tmp_path / name, name, durability=DURABLE)) for name in ("ps0", "ps1")
        ]
        yield [each.address for each in made]


async def objects(ps: tc.Client, name: str, owner: str = "") -> tuple[Any, Any]:
    """A module with a plain optimizer."""
    net = await ps.module(nn.Linear, 4, 3, name=name, seed=1, owner=owner)
    return net, await ps.optimizer(torch.optim.Adam, net.parameters(), lr=0.1)


async def train(ps: tc.Client, net: Any, opt: Any, number: int) -> float:
    """One pass."""
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(number))
    async with ps.context() as ctx:
        loss = (await net(x)).square().mean()
        await ctx.backward(loss, step=opt)
    return loss.item()


async def state_of(net: Any, opt: Any) -> Any:
    return bits(await net.state_dict()), bits((await opt.state_dict())["state"])


async def test_handles_go_on_with_the_other_owner(addresses: list[str]) -> None:
    async with tc.connect(*addresses) as ps, tc.connect(*addresses) as other:
        found = []
        for name in ("plain", "moved"):
            net, opt = await objects(ps, name)
            its_net, its_opt = await objects(other, name)
            losses = []
            for number in range(12):
                if name == "moved" and number == 4:
                    moved = await ps.move("moved", to="ps1")
                    assert moved.names == ("moved", opt.remotes["ps0"].handle.name)
                    assert moved.pause <= 0.2
                if name == "moved" and number == 8:
                    await other.move(its_net, to="ps0")
                losses.append(
                    await (train(other, its_net, its_opt, number) if number % 2 else train(ps, net, opt, number))
                )
            found.append((losses, await state_of(net, opt), await state_of(its_net, its_opt)))
        assert found[0] == found[1]
        assert net.owner == its_net.owner == "ps0"


async def test_objects_move_while_trainers_train(addresses: list[str]) -> None:
    """Each trainer has a module of its own, so that the order of their steps does not matter."""
    counts = [40, 40]

    async def program(prefix: str, moves: int) -> Any:
        async with AsyncExitStack() as stack:
            mover, *trainers = [await stack.enter_async_context(tc.connect(*addresses)) for _ in range(3)]
            made = [await objects(ps, f"{prefix}{number}") for number, ps in enumerate(trainers)]
            done = asyncio.Event()
            losses: list[list[float]] = [[], []]

            async def run(number: int) -> None:
                while len(losses[number]) < counts[number] or not done.is_set():
                    at = len(losses[number])
                    losses[number].append(await train(trainers[number], *made[number], at * 2 + number))

            async def move() -> None:
                for turn in range(moves):
                    for number in range(2):
                        there = ["ps0", "ps1"]
                        source, target = there[turn % 2], there[1 - turn % 2]
                        moved = await mover.move(f"{prefix}{number}", to=target, owner=source)
                        assert moved.pause <= 0.2
                done.set()

            await asyncio.gather(run(0), run(1), move())
            counts[:] = [len(each) for each in losses]
            assert {net.owner for net, _ in made} == {"ps0" if moves % 2 == 0 else "ps1"}
            return losses, [await state_of(*each) for each in made]

    moved = await program("moved", 3)
    assert moved == await program("plain", 0)
