"""Objects whose state can no longer be read are not there when an owner that was killed starts again."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn, optim

import trainer_client as tc
from ps_service import hosted, remote
from tests.integration.restarting import Owner, step
from tests.integration.restarts.conftest import checkpoint
from tests.integration.support import bits


class Unreadable:
    """Its state cannot be read, or cannot travel, as `how` says; "" is neither."""

    how = ""

    def state(self) -> Any:
        if self.how == "raises":
            raise RuntimeError("no state now")
        if self.how == "is nested":
            state: list[Any] = []
            for _ in range(30):
                state = [state]
            return state
        return object() if self.how == "travels not" else None


@hosted
class Plain(Unreadable):
    """A plain object."""

    def __init__(self) -> None:
        self.value = 0

    @remote
    def add(self, how: str = "") -> int:
        self.value, self.how = self.value + 1, how
        return self.value

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value, "state": self.state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"]


@hosted
class Module(Unreadable, nn.Module):
    """A module with an extra state."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)
        self.value: torch.Tensor
        self.register_buffer("value", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(x)

    @remote
    def add(self, how: str = "") -> int:
        self.value.add_(1)
        self.how = how
        return int(self.value)

    def get_extra_state(self) -> Any:
        return self.state()

    def set_extra_state(self, state: Any) -> None:
        pass


@pytest.fixture
async def owner(tmp_path: Path) -> AsyncIterator[Owner]:
    async with Owner(tmp_path, modules=[sys.modules[__name__]], durability="always") as made:
        yield made


HOW = pytest.mark.parametrize("how", ["raises", "travels not"])
X = torch.ones(1, 2)
KINDS = pytest.mark.parametrize("kind", ["Plain", "Module"])


async def made(ps: tc.Client, kind: str) -> Any:
    make = ps.module if kind == "Module" else ps.create
    return await make(f"{__name__}.{kind}", name="it")


@HOW
@KINDS
async def test_the_state_before_does_not_come_back(owner: Owner, ps: tc.Client, kind: str, how: str) -> None:
    it = await made(ps, kind)
    assert await it.add() == 1
    assert await it.add(how) == 2
    told = [each.text for each in owner.server.engine.events.latest() if "is not kept" in each.text]
    await owner.crash()
    with pytest.raises(tc.errors.StaleHandleError, match="the owner has started without it"):
        await it.add()
    again = await made(ps, kind)
    assert again.was_made
    assert await again.add() == 1
    assert len(told) == 1
    assert "'it' is not kept" in told[0]


@HOW
@KINDS
async def test_it_is_there_once_its_state_can_be_read(owner: Owner, ps: tc.Client, kind: str, how: str) -> None:
    it = await made(ps, kind)
    await it.add(how)
    await it.add()
    await owner.crash()
    assert await it.add() == 3
    await it.add(how)
    await checkpoint(owner)
    await it.add()
    await owner.crash()
    assert not (await made(ps, kind)).was_made


@HOW
async def test_what_was_made_from_it_goes_and_comes_with_it(owner: Owner, ps: tc.Client, how: str) -> None:
    net = await made(ps, "Module")
    opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1, name="opt")
    other = await ps.module(nn.Linear, 2, 1, name="other", seed=1)

    await step(ps, opt, net, X)
    await net.add(how)
    await step(ps, opt, net, X)
    await net.add()
    await step(ps, opt, net, X)
    written = bits(await net.state_dict())
    await owner.crash()
    assert bits(await net.state_dict()) == written
    await net.add(how)
    await step(ps, opt, net, X)
    await owner.crash()
    for each in (net.add, opt.state_dict):
        with pytest.raises(tc.errors.StaleHandleError):
            await each()
    assert (await made(ps, "Module")).was_made
    assert bits(await other.state_dict())


@HOW
@KINDS
async def test_what_is_made_anew_is_there_after_the_next_kill(owner: Owner, ps: tc.Client, kind: str, how: str) -> None:
    it = await made(ps, kind)
    await it.add(how)
    await owner.crash()
    it = await made(ps, kind)
    assert it.was_made
    if kind == "Module":
        opt = await ps.optimizer(optim.SGD, it.parameters(), lr=0.1, name="opt")
        await step(ps, opt, it, X)
    assert await it.add() == 1
    await owner.crash()
    assert await it.add() == 2


@HOW
async def test_a_schedule_has_its_rates_when_its_optimizer_is_kept_again(owner: Owner, ps: tc.Client, how: str) -> None:
    net = await made(ps, "Module")
    opt = await ps.optimizer(optim.SGD, net.parameters(), lr=1.0, name="opt")
    schedule = await ps.scheduler(optim.lr_scheduler.StepLR, opt, step_size=1, gamma=0.5)

    await step(ps, opt, net, X)
    await net.add(how)
    await step(ps, opt, net, X)
    await net.add()
    await step(ps, opt, net, X)
    await schedule.step()
    await step(ps, opt, net, X)
    written = bits(await net.state_dict())
    await owner.crash()
    assert bits(await net.state_dict()) == written
    assert await schedule.get_last_lr() == [0.5]


async def test_a_state_that_is_nested_too_deep_does_not_leave_an_older_one(owner: Owner, ps: tc.Client) -> None:
    it = await made(ps, "Plain")
    await it.add()
    await it.add("is nested")
    await owner.crash()
    with pytest.raises(tc.errors.StaleHandleError, match="the owner has started without it"):
        await it.add()
