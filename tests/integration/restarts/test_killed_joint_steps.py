"""A step over several owners is made by all or by none, also if one of them is killed between."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn, optim

import trainer_client as tc
from ps_service.durability.point_in_time import Moment, build
from tests.conftest import StartProcess
from tests.integration.restarting import Owner
from tests.integration.restarts.test_replay import made
from tests.integration.support import bits
from trainer_client.optimizers.optimizer import DistributedOptimizer

NAMES = ("ps0", "ps1")
Do = Callable[[], Awaitable[Any]]


def batch(i: int) -> torch.Tensor:
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(i))


class Model:
    """A layer on each of two owners, one optimizer of both, and the same here."""

    def __init__(self, ps: tc.Client) -> None:
        self.ps = ps
        torch.manual_seed(1)
        self.local = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
        self.local_opt = optim.Adam(self.local.parameters(), lr=0.1)
        self.nets: list[tc.RemoteModule] = []
        self.opt: Any = None

    async def begin(self) -> None:
        for layer, name in zip(self.local, NAMES, strict=True):
            net = await self.ps.module(nn.Linear, *layer.weight.T.shape, name=f"net-{name}", owner=name)
            await net.load_state_dict(dict(layer.state_dict()))
            self.nets.append(net)
        parameters = [each for net in self.nets for each in net.parameters()]
        self.opt = await self.ps.optimizer(optim.Adam, parameters, lr=0.1)

    async def backward(self, ctx: tc.Context, i: int) -> None:
        await ctx.backward((await self.nets[1](await self.nets[0](batch(i)))).square().sum())

    async def step(self, ctx: tc.Context, i: int) -> Any:
        await self.backward(ctx, i)
        return await self.opt.step(ctx)

    def locally(self, i: int) -> None:
        self.local_opt.zero_grad()
        self.local(batch(i)).square().sum().backward()
        self.local_opt.step()

    async def same(self) -> bool:
        found = [bits(await each.state_dict()) for each in self.nets]
        expected = [bits(dict(each.state_dict())) for each in self.local]
        return found == expected and bits(await self.opt.state_dict()) == bits(self.local_opt.state_dict())


@pytest.fixture
async def both(tmp_path: Path) -> AsyncIterator[list[Owner]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(Owner(tmp_path / name, name, durability="always")) for name in NAMES]


@pytest.fixture
async def model(both: list[Owner]) -> AsyncIterator[Model]:
    async with tc.connect(*(each.address for each in both)) as ps:
        model = Model(ps)
        await model.begin()
        yield model


def meanwhile(monkeypatch: pytest.MonkeyPatch, name: str, do: Do) -> None:
    """Does something once, before a method of the optimizer that its thread calls next."""
    loop, method = asyncio.get_running_loop(), getattr(DistributedOptimizer, name)

    def patched(self: Any, *arguments: Any, **more: Any) -> Any:
        monkeypatch.setattr(DistributedOptimizer, name, method)
        asyncio.run_coroutine_threadsafe(do(), loop).result()  # type: ignore[arg-type]
        return method(self, *arguments, **more)

    monkeypatch.setattr(DistributedOptimizer, name, patched)


@pytest.mark.parametrize(("which", "checkpoint"), [((0,), True), ((1,), False), ((0, 1), True)], ids=str)
async def test_a_step_is_made_by_all_if_one_is_killed_after_the_check(
    both: list[Owner], model: Model, monkeypatch: pytest.MonkeyPatch, which: tuple[int, ...], checkpoint: bool
) -> None:
    async def kill() -> None:
        for place in which:
            if checkpoint:
                await asyncio.to_thread(both[place].server.engine.checkpoints.write)
            await both[place].crash()

    for i in range(4):
        if i % 2:
            meanwhile(monkeypatch, "apply_accepted", kill)
        async with model.ps.context() as ctx:
            assert await model.step(ctx, i) == {"ps0": i + 1, "ps1": i + 1}
        model.locally(i)
        if i == 3:
            await both[which[0]].crash()  # from what it has written of such a step
        assert await model.same()
    for each in both:
        assert not each.server.engine.prepared.all()


@pytest.mark.parametrize("which", [0, 1])
async def test_a_step_is_made_by_none_if_one_is_killed_before_its_check(
    both: list[Owner], model: Model, which: int
) -> None:
    async with model.ps.context() as ctx:
        await model.backward(ctx, 0)
        await both[which].crash()
        with pytest.raises(tc.errors.ContextLostError):
            await model.opt.step(ctx)
    assert await model.same()
    for each in both:
        await model.ps.status(each.name)  # behind the end of the pass
    for each in both:
        await each.crash()
        assert not each.server.engine.prepared.all(), "what was prepared is dropped with the pass"
    async with model.ps.context() as ctx:
        assert await model.step(ctx, 1) == {"ps0": 1, "ps1": 1}
    model.locally(1)
    assert await model.same()


async def test_a_step_of_a_repeated_pass_counts_once(
    both: list[Owner], model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(3):
        meanwhile(monkeypatch, "apply_accepted", both[i % 2].crash)
        assert await model.ps.run(model.step, i) == {"ps0": i + 1, "ps1": i + 1}
        model.locally(i)
        await both[i % 2].crash()
        assert await model.same()


async def test_gradients_that_change_after_the_check_are_those_of_the_step(both: list[Owner], model: Model) -> None:
    async with model.ps.context() as ctx:
        await model.backward(ctx, 0)
        for each in model.opt.remotes.values():
            await each.step(ctx, lambda *_: None, prepare=True)
        await ctx.clip_grad_norm([each for net in model.nets for each in net.parameters()], 0.1)
        assert await model.opt.step_accepted(ctx) == {"ps0": 1, "ps1": 1}
    written = [bits(await each.state_dict()) for each in model.nets]
    for owner in both:
        await owner.crash()
    assert [bits(await each.state_dict()) for each in model.nets] == written


async def test_a_step_that_was_under_way_when_its_session_ended_is_there(both: list[Owner], model: Model) -> None:
    async with model.ps.context() as ctx:
        await model.backward(ctx, 0)
        for each in model.opt.remotes.values():
            await each.step(ctx, lambda *_: None, prepare=True)
        anonymous = await model.ps.module(nn.Linear, 1, 1, owner="ps0")
        opt = await model.ps.optimizer(optim.SGD, anonymous.parameters(), lr=0.1)
        await ctx.backward((await anonymous(torch.ones(1, 1))).sum())
        for owner in both:
            owner.server.engine.durability.log.ended(model.ps.trainer)  # type: ignore[union-attr]
        await opt.step(ctx)
        assert await model.opt.step_accepted(ctx) == {"ps0": 1, "ps1": 1}
    written = [bits(owner.server.engine.registry.named(f"net-{owner.name}").value.state_dict()) for owner in both]
    for owner in both:
        await owner.crash()
        assert not owner.server.engine.prepared.all()
    assert [
        bits(owner.server.engine.registry.named(f"net-{owner.name}").value.state_dict()) for owner in both
    ] == written


async def test_one_owner_alone_prepares_nothing(both: list[Owner], model: Model) -> None:
    net = model.nets[0]
    opt = await model.ps.optimizer(optim.SGD, net.parameters(), lr=0.1, name="alone")
    before = both[0].server.engine.durability.log.log.end  # type: ignore[union-attr]
    prepared = []
    both[0].server.engine.prepared.put = lambda *_: prepared.append(1)  # type: ignore[method-assign]
    async with model.ps.context() as ctx:
        await ctx.backward((await net(batch(0))).sum(), step=opt)
    assert not prepared and both[0].server.engine.durability.log.log.end > before  # type: ignore[union-attr]


async def test_a_killed_process_makes_its_part_of_the_step(
    start_process: StartProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = [("--name", name, "--data-dir", str(tmp_path / name), "--durability", "interval:1") for name in NAMES]
    processes = [await start_process(*each) for each in flags]
    async with tc.connect(*(each.address for each in processes)) as ps:
        model = Model(ps)
        await model.begin()
        for i in range(2):
            which = i

            async def kill(which: int = which) -> None:
                processes[which].process.kill()
                await processes[which].process.wait()
                processes[which] = await start_process(*flags[which], "--listen", processes[which].address)

            meanwhile(monkeypatch, "apply_accepted", kill)
            async with ps.context() as ctx:
                assert await model.step(ctx, i) == {"ps0": i + 1, "ps1": i + 1}
            model.locally(i)
        assert await model.same()


async def test_a_state_that_was_built_has_no_steps_of_passes_that_nobody_goes_on_with(
    both: list[Owner], model: Model, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It has no sessions, so none would end with them, and all later checkpoints would have their gradients."""

    async def copy() -> None:
        await asyncio.to_thread(shutil.copytree, both[1].folder, tmp_path / "copy")

    meanwhile(monkeypatch, "apply_accepted", copy)
    async with model.ps.context() as ctx:
        await model.step(ctx, 0)
    await asyncio.to_thread(build, tmp_path / "copy", Moment(), tmp_path / "built", made)
    async with Owner(tmp_path / "copy", "ps1", durability="always") as owner:
        assert len(owner.server.engine.prepared.all()) == 1
    async with Owner(tmp_path / "built", "ps1", durability="always") as owner:
        assert not owner.server.engine.prepared.all() and len(owner.server.engine.registry) == 2
