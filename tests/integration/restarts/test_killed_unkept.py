"""An owner that is killed starts again though its log speaks of objects that are in no record of it."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import trainer_client as tc
from ps_service import hosted, remote
from tests.integration.restarting import Owner, Tally
from tests.integration.restarts.conftest import checkpoint
from tests.integration.support import bits


@hosted
class Stateless:
    """A plain object that cannot be kept."""

    @remote
    def here(self) -> bool:
        return True


@hosted
class Normed(nn.Module):
    """Has running statistics. Its forward waits while `going` is not set, and sets `begun` before."""

    going, begun = threading.Event(), threading.Event()

    def __init__(self, _: Any = None) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.begun.set()
        self.going.wait()
        return self.norm(x)


@hosted
class Sum(Tally):
    """Waits in `wait` as the forward of `Normed`."""

    @remote
    def wait(self) -> None:
        Normed.begun.set()
        Normed.going.wait()
        self.value += 100


@pytest.fixture(autouse=True)
def going() -> Iterator[threading.Event]:
    """Forwards of `Normed` wait while it is not set."""
    Normed.going.set()
    Normed.begun.clear()
    yield Normed.going
    Normed.going.set()


def owner_in(folder: Path, **options: Any) -> Owner:
    return Owner(folder, modules=[sys.modules[__name__]], durability="always", **options)


@pytest.fixture
async def owner(tmp_path: Path) -> AsyncIterator[Owner]:
    async with owner_in(tmp_path) as made:
        yield made


async def test_an_object_that_the_log_does_not_have_was_deleted(owner: Owner, ps: tc.Client) -> None:
    net = await ps.module(nn.Linear, 4, 2, name="net", seed=1)
    await ps.create(f"{__name__}.Stateless", name="plain")
    await ps.delete("plain")
    written = bits(await net.state_dict())
    await owner.crash()
    assert bits(await net.state_dict()) == written
    assert (await ps.create(f"{__name__}.Stateless", name="plain")).was_made


async def test_an_object_that_is_left_out_was_deleted(tmp_path: Path) -> None:
    async with owner_in(tmp_path) as owner, tc.connect(owner.address) as ps:
        await ps.module(nn.Linear, 4, 2, name="net")
        await checkpoint(owner)
        await ps.delete("net")
        await ps.module(nn.Linear, 2, 2, name="other")
    async with owner_in(tmp_path, leave_out=("net",)) as owner, tc.connect(owner.address) as ps:
        assert await ps.attach("other")


async def test_buffers_of_a_module_changed_that_the_log_does_not_have(owner: Owner, ps: tc.Client) -> None:
    plain = await ps.create(f"{__name__}.Stateless", name="plain")
    net = await ps.module(f"{__name__}.Normed", plain, name="net")
    other = await ps.module(nn.Linear, 4, 2, name="other", seed=1)
    await net(torch.randn(3, 4))
    written = bits(await other.state_dict())
    await owner.crash()
    assert bits(await other.state_dict()) == written


@pytest.mark.parametrize("replaces", [False, True])
async def test_buffers_of_a_module_changed_that_was_removed_meanwhile(
    owner: Owner, ps: tc.Client, going: threading.Event, replaces: bool
) -> None:
    net = await ps.module(f"{__name__}.Normed", name="net")
    going.clear()
    running = asyncio.ensure_future(net(torch.randn(3, 4)))
    await asyncio.to_thread(Normed.begun.wait)
    if replaces:
        later = await ps.module(f"{__name__}.Normed", 2, name="net", replace=True)
    else:
        await ps.delete("net")
        later = await ps.module(f"{__name__}.Normed", name="net")
    going.set()
    await running
    written = bits(await later.state_dict())
    await owner.crash()
    assert bits(await later.state_dict()) == written


async def test_buffers_of_an_object_changed_that_is_left_out(tmp_path: Path) -> None:
    async with owner_in(tmp_path) as owner, tc.connect(owner.address) as ps:
        net = await ps.module(f"{__name__}.Normed", name="net")
        await checkpoint(owner)
        await net(torch.randn(3, 4))
    async with owner_in(tmp_path, leave_out=("net",)) as owner, tc.connect(owner.address) as ps:
        with pytest.raises(tc.errors.UnknownNameError):
            await ps.attach("net")


@pytest.mark.parametrize("start", [None, 0, 5], ids=["deleted", "made again", "replaced"])
async def test_an_object_changed_that_was_removed_meanwhile(
    owner: Owner, ps: tc.Client, going: threading.Event, start: int | None
) -> None:
    total = await ps.create(f"{__name__}.Sum", 0, name="total")
    going.clear()
    running = asyncio.ensure_future(total.wait())
    await asyncio.to_thread(Normed.begun.wait)
    if start == 5:
        later = await ps.create(f"{__name__}.Sum", start, name="total", replace=True)
    else:
        await ps.delete("total")
        later = None if start is None else await ps.create(f"{__name__}.Sum", start, name="total")
    going.set()
    await running
    await owner.crash()
    if later is None:
        with pytest.raises(tc.errors.UnknownNameError):
            await ps.attach("total")
    else:
        assert await later.add() == (start or 0) + 1
        assert await (await ps.attach("total")).add() == (start or 0) + 2


async def test_what_an_object_that_the_log_does_not_have_has_replaced_is_gone(owner: Owner, ps: tc.Client) -> None:
    name = "replaced"
    net = await ps.module(nn.Linear, 4, 2, name=name)
    opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1, name="opt")
    await ps.create(f"{__name__}.Stateless", name=name, replace=True)
    await owner.crash()
    for lost in (name, "opt"):
        with pytest.raises(tc.errors.UnknownNameError):
            await ps.attach(lost)
    with pytest.raises(tc.errors.StaleHandleError):
        await opt.state_dict()
    kept = await ps.module(nn.Linear, 3, 2, name=name)
    assert kept.was_made
    written = bits(await kept.state_dict())
    await owner.crash()
    assert bits(await kept.state_dict()) == written
