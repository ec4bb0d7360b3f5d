"""A step over several owners is made by all or by none, also if the disk of one of them is full."""

from __future__ import annotations

import asyncio
import errno
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn, optim

import trainer_client as tc
from ps_service.durability.log.disk import Disk
from tests.integration.restarting import Owner

NAMES = ("ps0", "ps1")
TRAINERS = 4
WIDTH = 50_000


class Trainer:
    """Makes steps over both owners, each of which adds one to a number of its own in the layer of each owner."""

    def __init__(self, ps: tc.Client, number: int) -> None:
        self.ps, self.number = ps, number
        self.made = 0

    async def begin(self) -> None:
        self.nets = [await self.ps.module(nn.Linear, 1, WIDTH, bias=False, name=each, owner=each) for each in NAMES]
        parameters = [each for net in self.nets for each in net.parameters()]
        self.opt: Any = await self.ps.optimizer(optim.SGD, parameters, name="opt", lr=1.0)

    async def until_it_is_full(self) -> None:
        with pytest.raises(tc.errors.StorageError):
            for _ in range(5_000):
                await self.step()
                self.made += 1

    async def step(self) -> None:
        mask = torch.zeros(1, WIDTH)
        mask[0, self.number] = -1.0
        async with self.ps.context() as ctx:
            first, second = await asyncio.gather(*(net(torch.ones(1, 1)) for net in self.nets))
            await ctx.backward((first * mask).sum() + (second * mask).sum())
            await self.opt.step(ctx)


@pytest.mark.parametrize("full", NAMES)
async def test_no_owner_steps_without_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: str) -> None:
    create = Disk.create

    def create_if_there_is_room(disk: Disk, path: Path, nbytes: int) -> int:
        if path.parent.name == full and path.name.startswith("free-"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return create(disk, path, nbytes)

    async with AsyncExitStack() as stack:
        owners = [
            await stack.enter_async_context(Owner(tmp_path / each, each, durability="interval:1")) for each in NAMES
        ]
        trainers = []
        for number in range(TRAINERS):
            ps = await stack.enter_async_context(tc.connect(*(each.address for each in owners)))
            trainers.append(Trainer(ps, number))
            await trainers[-1].begin()
        for net in trainers[0].nets:
            await net.load_state_dict({"weight": torch.zeros(WIDTH, 1)})
        monkeypatch.setattr(Disk, "create", create_if_there_is_room)
        await asyncio.gather(*(each.until_it_is_full() for each in trainers))
        counts = [(await net.state_dict())["weight"][:TRAINERS, 0].tolist() for net in trainers[0].nets]
        assert counts == [[each.made for each in trainers]] * 2 and min(counts[0]) > 0
        monkeypatch.undo()
        for each in trainers:
            await each.step()
        counts = [(await net.state_dict())["weight"][:TRAINERS, 0].tolist() for net in trainers[0].nets]
        assert counts == [[each.made + 1 for each in trainers]] * 2, "it goes on when there is room"
