"""Checkpoints of an owner with a log are written in pieces, and whatever happens between them is there after a kill."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn, optim

import trainer_client as tc
from ps_service import hosted, remote
from tests.integration.restarting import Owner
from tests.integration.restarts.conftest import Action, checkpoint
from tests.integration.restarts.test_killed import Normed, one_pass
from tests.integration.support import bits


@hosted
class Words(nn.Module):
    """An embedding whose gradient is sparse if it is asked to be."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(160, 4, sparse=sparse)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.words(ids)

    @remote
    def shrink(self) -> None:
        with torch.no_grad():
            self.words.weight.mul_(0.5)


@pytest.fixture
async def owner(tmp_path: Path) -> AsyncIterator[Owner]:
    modules = [sys.modules[__name__], sys.modules[Normed.__module__]]
    async with Owner(tmp_path, modules=modules, durability="interval:0.01") as made:
        yield made


def ids(i: int) -> torch.Tensor:
    return torch.randint(160, (20,), generator=torch.Generator().manual_seed(i))


class Pair:
    """An embedding on the owner, and the same one here."""

    def __init__(self, sparse: bool, cls: Any, options: dict[str, Any]) -> None:
        self.made = sparse, cls, options
        self.count = 0

    async def begin(self, ps: tc.Client) -> None:
        sparse, cls, options = self.made
        self.ps = ps
        self.net = await ps.module(f"{__name__}.Words", sparse, seed=1)
        self.opt = await ps.optimizer(cls, self.net.parameters(), **options)
        torch.manual_seed(1)
        self.local = Words(sparse)
        self.local_opt = cls(self.local.parameters(), **options)

    async def step(self) -> None:
        self.count += 1
        some = ids(self.count)
        async with self.ps.context() as ctx:
            await ctx.backward((await self.net(some)).square().sum(), step=self.opt)
        self.local(some).square().sum().backward()
        self.local_opt.step()
        self.local_opt.zero_grad()

    async def check(self) -> None:
        assert bits(await self.net.state_dict()) == bits(dict(self.local.state_dict()))
        assert bits(await self.opt.state_dict()) == bits(self.local_opt.state_dict())


BY_ROWS: list[Any] = [
    (False, optim.SGD, {"lr": 0.1}),
    (True, optim.SGD, {"lr": 0.1}),
    (False, optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    (False, optim.Adam, {"lr": 0.1}),
    (False, optim.AdamW, {"lr": 0.1, "amsgrad": True}),
    (True, optim.Adagrad, {"lr": 0.1}),
    (False, optim.Adagrad, {"lr": 0.1, "weight_decay": 0.1}),
    (True, optim.SparseAdam, {"lr": 0.1}),
    (False, optim.RMSprop, {"lr": 0.1, "momentum": 0.5, "centered": True}),
    (False, optim.Adadelta, {}),
    (False, optim.Adamax, {}),
    (False, optim.NAdam, {}),
    (False, optim.RAdam, {}),
    (False, optim.ASGD, {}),
    (False, optim.Rprop, {}),
    (False, optim.Adam, {"lr": 0.1, "fused": True}),
    (False, optim.SGD, {"lr": 0.1, "fused": True}),
]


@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")  # torch's own optimizers make such tensors
@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize(("sparse", "cls", "options"), BY_ROWS)
async def test_a_large_parameter_is_read_row_by_row_while_it_is_stepped(
    owner: Owner, ps: tc.Client, between: Callable[[Action], None], sparse: bool, cls: Any, options: dict[str, Any]
) -> None:
    pair = Pair(sparse, cls, options)
    await pair.begin(ps)
    await pair.step()
    between(pair.step)
    await checkpoint(owner)
    assert pair.count > 5, "it was not read in parts"
    await pair.step()
    await owner.crash()
    await pair.check()
    await pair.step()
    await pair.check()


@pytest.mark.usefixtures("small_pieces")
async def test_the_first_step_may_be_made_while_it_is_read(
    owner: Owner, ps: tc.Client, between: Callable[[Action], None]
) -> None:
    pair = Pair(False, optim.Adam, {"lr": 0.1})
    await pair.begin(ps)
    turns = 0

    async def later() -> None:
        nonlocal turns
        turns += 1
        if turns > 2:
            await pair.step()

    between(later)
    await checkpoint(owner)
    await owner.crash()
    await pair.check()


@pytest.mark.usefixtures("small_pieces")
async def test_states_that_are_loaded_and_written_to_meanwhile_are_there(
    owner: Owner, ps: tc.Client, between: Callable[[Action], None]
) -> None:
    pair = Pair(False, optim.Adam, {"lr": 0.1})
    await pair.begin(ps)
    await pair.step()
    saved = [await pair.net.state_dict(), await pair.opt.state_dict()]
    turns = 0

    async def change() -> None:
        nonlocal turns
        turns += 1
        await pair.step()
        if turns == 4:
            await pair.net.shrink()
            pair.local.shrink()
        if turns == 6:
            await pair.net.load_state_dict(saved[0])
            pair.local.load_state_dict(saved[0])
        if turns == 8:
            await pair.opt.load_state_dict(saved[1])
            pair.local_opt.load_state_dict(saved[1])
        await pair.step()

    between(change)
    await checkpoint(owner)
    assert turns > 8
    await owner.crash()
    await pair.check()


@hosted
class Half(optim.Optimizer):
    """An optimizer of its own, which counts in its options."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.5, "count": 0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group["count"] += 1
            for each in group["params"]:
                if each.grad is not None:
                    each.sub_(each.grad, alpha=group["lr"] / group["count"])


@pytest.mark.usefixtures("small_pieces")
async def test_optimizers_that_cannot_be_divided_are_read_as_a_whole(
    owner: Owner, ps: tc.Client, between: Callable[[Action], None]
) -> None:
    net = await ps.module(nn.Linear, 4, 2, seed=1)
    other = await ps.module(nn.Linear, 4, 2, seed=2)
    opt = await ps.optimizer(f"{__name__}.Half", net.parameters())
    adam = await ps.optimizer(optim.Adam, [*net.parameters(), *other.parameters()], lr=0.1)
    count = 0

    async def train() -> None:
        nonlocal count
        count += 1
        await one_pass(ps, net, opt, count)
        await one_pass(ps, net, adam, count)
        await one_pass(ps, other, adam, count)

    await train()
    between(train)
    await checkpoint(owner)
    assert count > 3
    state = bits([await each.state_dict() for each in (net, other, opt, adam)])
    await owner.crash()
    assert bits([await each.state_dict() for each in (net, other, opt, adam)]) == state
