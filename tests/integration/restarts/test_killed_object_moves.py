"""Owners that are killed while objects move between them: one owner has them, and each step is made once."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import trainer_client as tc
from ps_wire.v1 import operations_pb2 as pb
from tests.integration.restarting import Owner
from tests.integration.restarts.conftest import checkpoint
from tests.integration.support import bits
from trainer_client.handles.object_moves import ObjectMove

NAMES = ("ps0", "ps1")
AFTER = {
    "source": (pb.MOVE_BEGIN, pb.MOVE_READ, pb.MOVE_CLOSE, pb.MOVE_QUIET, pb.MOVE_ARRIVE, pb.MOVE_RELEASE),
    "target": (pb.MOVE_MAKE, pb.MOVE_ARRIVE, pb.MOVE_RELEASE, pb.MOVE_ACCEPT),
}
BEFORE = {"source": (), "target": (pb.MOVE_MAKE, pb.MOVE_ARRIVE)}
"""The steps of a move before and after which an owner is killed. Before others it is as after earlier ones."""

WITH_PASSES = (pb.MOVE_BEGIN, pb.MOVE_READ, pb.MOVE_CLOSE)
"""A pass of the trainer begins with each of these."""


class Pair:
    """Two owners with logs, and a module with an optimizer on one of them, which a trainer trains."""

    def __init__(self, owners: dict[str, Owner], ps: tc.Client, net: Any, opt: Any) -> None:
        self.owners, self.ps, self.net, self.opt = owners, ps, net, opt
        self.losses: list[float] = []

    @property
    def addresses(self) -> list[str]:
        return [each.address for each in self.owners.values()]

    async def train(self, until: asyncio.Event, least: int = 0, turns: asyncio.Semaphore | None = None) -> None:
        """Makes passes, one at each turn if there are some."""

        async def step(ctx: tc.Context, number: int) -> float:
            x = torch.randn(5, 4, generator=torch.Generator().manual_seed(number))
            loss = (await self.net(x)).square().mean()
            await ctx.backward(loss, step=self.opt)
            return loss.item()

        while not until.is_set() or len(self.losses) < least:
            if turns is not None:
                await turns.acquire()
            self.losses.append(await self.ps.run(step, len(self.losses), attempts=20))

    async def state(self) -> Any:
        return bits(await self.net.state_dict()), bits((await self.opt.state_dict())["state"])

    def has(self) -> list[str]:
        """The owners that have the module for anybody who asks."""
        found = []
        for owner in self.owners.values():
            engine = owner.server.engine
            hosted = engine.registry.get(self.net.ref.object_id)
            if hosted is not None and self.net.ref.object_id not in engine.moves.held:
                found.append(owner.name)
        return found


async def pair(stack: AsyncExitStack, folder: Path, durability: str = "interval:1") -> Pair:
    owners = {
        name: await stack.enter_async_context(Owner(folder / name, name, durability=durability)) for name in NAMES
    }
    ps = await stack.enter_async_context(tc.connect(*(each.address for each in owners.values())))
    net = await ps.module(nn.Linear, 4, 3, name="net", seed=1)
    return Pair(owners, ps, net, await ps.optimizer(torch.optim.Adam, net.parameters(), lr=0.1))


async def undisturbed(stack: AsyncExitStack, folder: Path, steps: int) -> Pair:
    """The same steps without moves and ends."""
    plain, done = await pair(stack, folder / "plain", "off"), asyncio.Event()
    done.set()
    await plain.train(done, steps)
    return plain


@pytest.mark.parametrize("victim", ["source", "target"])
async def test_an_owner_that_is_killed_at_any_moment_of_a_move(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, victim: str
) -> None:
    original = ObjectMove._call
    moments = [*((each, "after") for each in AFTER[victim]), *((each, "before") for each in BEFORE[victim])]

    async with AsyncExitStack() as stack:
        moved = await pair(stack, tmp_path / "moved")
        mover = await stack.enter_async_context(tc.connect(*moved.addresses))

        async def call(move: ObjectMove, session: Any, action: Any, *args: Any, **fields: Any) -> Any:
            is_now, when = bool(chosen) and action == chosen[0], chosen[-1:]
            owner = moved.owners[getattr(move, f"_{victim}").owner]
            if is_now:
                chosen.clear()
            if action in WITH_PASSES:
                turns.release()
            if is_now and when == ["before"]:
                await owner.crash()
            result = await original(move, session, action, *args, **fields)
            if is_now and when == ["after"]:
                await owner.crash()
            return result

        chosen: list[Any] = []

        monkeypatch.setattr(ObjectMove, "_call", call)
        done, turns = asyncio.Event(), asyncio.Semaphore(0)
        training = asyncio.ensure_future(moved.train(done, turns=turns))
        source, target = NAMES
        for moment in moments:
            chosen[:] = moment
            await mover.move("net", to=target, owner=source)
            assert (moved.has(), chosen) == ([target], []), moment
            source, target = target, source
        done.set()
        turns.release()
        await training
        found = await moved.state()
        for owner in moved.owners.values():
            await owner.crash()
        assert await moved.state() == found
        plain = await undisturbed(stack, tmp_path, len(moved.losses))
        assert plain.losses == moved.losses
        assert await plain.state() == found


@pytest.mark.parametrize("ends", ["killed", "in order"])
async def test_a_move_whose_program_is_gone_is_finished_by_trainers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """The program ends between the release of the objects and all that follows, or goes on as if it had failed; then
    both owners are killed."""
    original = ObjectMove._call

    class Gone(Exception):
        pass

    async def call(move: ObjectMove, session: Any, action: Any, *args: Any, **fields: Any) -> Any:
        if is_gone and ends == "killed":
            raise Gone
        result = await original(move, session, action, *args, **fields)
        if action == pb.MOVE_RELEASE and result and not is_gone:  # else there was no moment for it yet
            is_gone.append(True)
            raise Gone
        return result

    is_gone: list[bool] = []
    monkeypatch.setattr(ObjectMove, "_call", call)
    async with AsyncExitStack() as stack:
        moved, ended = await pair(stack, tmp_path / "moved"), asyncio.Event()
        ended.set()
        await moved.train(ended, 5)
        async with tc.connect(*moved.addresses) as mover:
            with pytest.raises(Gone):
                await mover.move("net", to="ps1")
        assert moved.has() == []
        await asyncio.gather(*(owner.crash() for owner in moved.owners.values()))
        assert moved.has() == []
        await moved.train(ended, 10)
        assert (moved.net.owner, moved.has()) == ("ps1", ["ps1"])
        plain = await undisturbed(stack, tmp_path, 10)
        assert plain.losses == moved.losses
        assert await plain.state() == await moved.state()


@pytest.mark.parametrize("restart", [Owner.crash, Owner.restart], ids=["killed", "stopped"])
async def test_checkpoints_know_what_has_moved(tmp_path: Path, restart: Any) -> None:
    async with AsyncExitStack() as stack:
        moved, ended = await pair(stack, tmp_path / "moved"), asyncio.Event()
        late = await stack.enter_async_context(tc.connect(*moved.addresses))
        its = await late.attach("net")
        ended.set()
        await moved.train(ended, 3)
        await moved.ps.move(moved.net, to="ps1")
        await moved.train(ended, 5)
        for owner in moved.owners.values():
            await checkpoint(owner)
        await moved.train(ended, 7)
        for owner in moved.owners.values():
            await restart(owner)
        # A handle from before, and a program that asks the old owner for the name.
        assert bits(await its.state_dict()) == bits(await moved.net.state_dict())
        assert its.owner == "ps1"
        async with tc.connect(*moved.addresses) as new:
            again = await new.module(nn.Linear, 4, 3, name="net", seed=1)
            assert (again.owner, again.was_made) == ("ps1", False)
            assert (await new.attach("net", owner="ps0")).owner == "ps1"
        await moved.train(ended, 9)
        plain = await undisturbed(stack, tmp_path, 9)
        assert plain.losses == moved.losses
        assert await plain.state() == await moved.state()


@pytest.mark.parametrize("step", [pb.MOVE_MAKE, pb.MOVE_ARRIVE, pb.MOVE_RELEASE])
async def test_a_checkpoint_has_an_object_that_is_coming_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: Any
) -> None:
    """The owner had the object before, so that it knows where it went."""
    original = ObjectMove._call

    async def call(move: ObjectMove, session: Any, action: Any, *args: Any, **fields: Any) -> Any:
        result = await original(move, session, action, *args, **fields)
        if action == step and move._target.owner == "ps0":
            await checkpoint(moved.owners["ps0"])
        return result

    monkeypatch.setattr(ObjectMove, "_call", call)
    async with AsyncExitStack() as stack:
        moved, ended = await pair(stack, tmp_path / "moved"), asyncio.Event()
        ended.set()
        await moved.train(ended, 3)
        await moved.ps.move("net", to="ps1")
        await moved.train(ended, 5)
        await moved.ps.move("net", to="ps0", owner="ps1")
        await moved.train(ended, 7)
        await moved.owners["ps0"].crash()
        await moved.train(ended, 9)
        assert moved.has() == ["ps0"]
        plain = await undisturbed(stack, tmp_path, 9)
        assert plain.losses == moved.losses
        assert await plain.state() == await moved.state()


@pytest.mark.parametrize("restart", [Owner.crash, Owner.restart], ids=["killed", "stopped"])
async def test_a_pass_that_is_run_again_counts_once_although_its_module_has_moved(tmp_path: Path, restart: Any) -> None:
    async with AsyncExitStack() as stack:
        moved = await pair(stack, tmp_path / "moved")
        mover = await stack.enter_async_context(tc.connect(*moved.addresses))
        losses = []

        async def step(ctx: tc.Context) -> None:
            loss = (await moved.net(torch.ones(2, 4))).sum()
            losses.append(loss.item())
            await ctx.backward(loss, step=moved.opt)
            if len(losses) == 1:  # as if another owner had been killed
                raise tc.errors.ContextLostError("lost")

        async def attach() -> None:
            await mover.move("net", to="ps1")
            await restart(moved.owners["ps1"])

        before = await moved.net.state_dict()
        await moved.ps.run(step, attach=attach)
        assert len(losses) == 2
        assert moved.net.owner == "ps1"
        # The first step of Adam is as large as its learning rate.
        assert torch.allclose(before["bias"] - 0.1, (await moved.net.state_dict())["bias"], atol=1e-4)
