"""What calls change while the disk of their owner is full."""

from __future__ import annotations

import errno
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.optim import lr_scheduler

import trainer_client as tc
from ps_service import RRef, hosted, remote
from ps_service.durability.log.log import Log
from ps_service.durability.log.owners_log import OwnersLog
from ps_service.durability.log.segments import Segments
from tests.integration.restarting import Owner
from tests.integration.support import bits

Full = Callable[[], AbstractContextManager[None]]
FULL = pytest.raises(tc.errors.StorageError, match="No space left on device")
X = torch.arange(12.0).reshape(3, 4)


@hosted
class Noisy(nn.Module):
    """Draws from the default generator when it trains."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.dropout(x)

    @remote
    def kept(self) -> Any:
        return RRef(torch.ones(2))


@pytest.fixture
async def owner(tmp_path: Path) -> AsyncIterator[Owner]:
    async with Owner(tmp_path, modules=[sys.modules[__name__]], durability="always") as made:
        yield made


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Full:
    """A block in which there is no room for any record."""

    def raises(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    @contextmanager
    def block() -> Iterator[None]:
        with monkeypatch.context() as patch:
            patch.setattr(Log, "room", property(lambda _: 0, lambda *_: None), raising=False)
            patch.setattr(Segments, "has_space", lambda *_: False)
            patch.setattr(Segments, "extend", raises)
            patch.setattr(Segments, "prepare", raises)
            yield

    return block


def owed(owner: Owner) -> int:
    """How many records are still to be appended."""
    log = owner.server.engine.durability.log
    assert isinstance(log, OwnersLog)
    return len(log._owed)


async def test_a_call_that_changes_buffers_is_refused_when_it_is_repeated(
    owner: Owner, ps: tc.Client, full: Full
) -> None:
    net = await ps.module(nn.BatchNorm1d, 4, name="net")
    await net(X)
    with full():
        for _ in range(5):
            with FULL:
                await net(X)
        assert int((await net.state_dict())["num_batches_tracked"]) == 1 and owed(owner) == 0
        net.eval()
        assert (await net(X)).shape == X.shape, "what changes nothing goes on"
        net.train()
    await net(X)
    changed = bits(await net.state_dict())
    await owner.crash()
    assert bits(await net.state_dict()) == changed


async def test_the_first_call_that_changes_buffers_is_refused_behind_that(
    owner: Owner, ps: tc.Client, full: Full
) -> None:
    net = await ps.module(nn.BatchNorm1d, 4, name="net")
    with full():
        for _ in range(5):
            with FULL:
                await net(X)
        changed = bits(await net.state_dict())
        assert int((await net.state_dict())["num_batches_tracked"]) == 1 and owed(owner) == 1
    assert bits(await net.state_dict()) == changed
    await net(X)
    assert owed(owner) == 0
    changed = bits(await net.state_dict())
    await owner.crash()
    assert bits(await net.state_dict()) == changed


async def test_a_call_whose_result_stays_is_refused_when_it_is_repeated(
    owner: Owner, ps: tc.Client, full: Full
) -> None:
    net = await ps.module(f"{__name__}.Noisy", name="net")
    objects = len(owner.server.engine.registry)
    with full():
        for _ in range(5):
            with FULL:
                await net.kept()
        assert owed(owner) == 1 and len(owner.server.engine.registry) == objects
        net.eval()
        assert torch.equal(await net(X), X)
    assert await (await net.kept()).to_here() is not None


async def test_a_call_that_draws_is_refused_when_it_is_repeated(owner: Owner, ps: tc.Client, full: Full) -> None:
    net = await ps.module(f"{__name__}.Noisy", name="net")
    with full():
        for _ in range(5):
            with FULL:
                await net(X)
        assert owed(owner) == 1
        net.eval()
        assert torch.equal(await net(X), X)
        net.train()
    await net(X)
    assert owed(owner) == 0


async def test_a_schedule_does_not_step_without_room(owner: Owner, ps: tc.Client, full: Full) -> None:
    net = await ps.module(nn.Linear, 4, 2, name="net", seed=1)
    opt = await ps.optimizer(optim.SGD, net.parameters(), lr=1.0)
    schedule = await ps.scheduler(lr_scheduler.ExponentialLR, opt, 0.5)
    with full():
        for _ in range(3):
            with FULL:
                await schedule.step()
        assert await schedule.get_last_lr() == [1.0] and owed(owner) == 0
    await schedule.step()
    await owner.crash()
    assert await schedule.get_last_lr() == [0.5]
