"""Buffers that code replaces are as they were when an owner that was killed starts again."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import torch
from torch import nn

import trainer_client as tc
from ps_service import hosted, remote
from tests.integration.restarting import Owner
from tests.integration.restarts.conftest import checkpoint
from tests.integration.support import bits


@hosted
class Replacing(nn.Module):
    """Puts other tensors in the places of its buffers, and None."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("late", None)
        self.register_buffer("seen", torch.zeros(1))
        self.register_buffer("cast", torch.zeros(2))
        self.register_buffer("gone", torch.ones(2))
        self.register_buffer("shared", torch.zeros(2))
        self.part = nn.Module()
        self.part.register_buffer("shared", self.shared)

    @remote
    def set_late(self) -> None:
        self.late = torch.full((3,), 2.0)

    @remote
    def grow(self) -> None:
        self.seen = torch.cat([self.seen, torch.ones(2)])

    @remote
    def widen(self) -> None:
        self.cast = torch.full((2,), 1 / 3, dtype=torch.float64)

    @remote
    def drop(self) -> None:
        self.gone = None

    @remote
    def exchange(self) -> None:
        self.late, self.gone = self.gone, None

    @remote
    def add_one(self) -> None:
        self.register_buffer("made", torch.ones(2))

    @remote
    def write_shared(self) -> None:
        self.shared.add_(1)

    @remote
    def part_shared(self) -> None:
        self.part.shared = self.part.shared + 5

    @remote
    def sums(self) -> list[float]:
        return [float(each.sum()) for each in (self.shared, self.part.shared)]


@pytest.fixture
async def owner(tmp_path: Path) -> AsyncIterator[Owner]:
    async with Owner(tmp_path, modules=[sys.modules[__name__]], durability="always") as made:
        yield made


METHODS = ["set_late", "grow", "widen", "drop", "exchange", "add_one", "write_shared", "part_shared"]


@pytest.mark.parametrize("method", METHODS)
async def test_buffers_that_a_call_replaces_are_there(owner: Owner, ps: tc.Client, method: str) -> None:
    net = await ps.module(f"{__name__}.Replacing", name="net")
    before = bits(await net.state_dict())
    await getattr(net, method)()
    written = bits(await net.state_dict())
    assert written != before
    await owner.crash()
    assert bits(await net.state_dict()) == written


async def test_buffers_that_are_one_tensor_stay_one(owner: Owner, ps: tc.Client) -> None:
    net = await ps.module(f"{__name__}.Replacing", name="net")
    await net.write_shared()
    await owner.crash()
    await net.write_shared()
    assert await net.sums() == [4.0, 4.0]
    await checkpoint(owner)
    await owner.crash()
    await net.write_shared()
    assert await net.sums() == [6.0, 6.0]
