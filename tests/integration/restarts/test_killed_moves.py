"""Owners that are killed while rows move from one to another: no row is on two, and no step is lost or made twice."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

import trainer_client as tc
from ps_service.durability.resharding.placement import Wanted
from ps_service.durability.resharding.reshard import reshard
from ps_wire.tables.routing import Routing, slots_of
from tests.integration.restarting import Owner
from tests.integration.restarts.conftest import checkpoint
from tests.integration.restarts.test_killed import MODES
from tests.integration.restarts.test_killed_tables import hosted, rows_of
from tests.integration.tables.moving import drawn, table_of
from trainer_client.tables.moves import Move

NAMES = ("ps0", "ps1", "ps2")
AFTER = {
    "source": ("begin_move", "stage", "changed_rows", "close", "is_quiet", "is_ready", "release", "reopen"),
    "target": (
        *("begin_move", "agree", "begin_arrival", "purge", "stage", "changed_rows", "close", "is_ready", "release"),
        "reopen",
    ),
}
BEFORE = {"source": (), "target": ("is_ready", "reopen")}
"""The steps of a move after and before which an owner is killed. After others the mover asks the same owners for the
same, as far as the one that is killed can tell."""

WITH_PASSES = ("begin_arrival", "changed_rows")
"""A pass of the trainer begins with each of these."""


class Group:
    """Three owners with logs, and a table on two of them, which a trainer trains."""

    def __init__(self, owners: dict[str, Owner], ps: tc.Client) -> None:
        self.owners, self.ps = owners, ps
        self.losses: list[float] = []

    async def train(
        self, items: tc.Table, until: asyncio.Event, least: int = 0, turns: asyncio.Semaphore | None = None
    ) -> None:
        """Makes passes, one at each turn if there are some."""

        async def step(ctx: tc.Context, ids: torch.Tensor) -> float:
            rows, bags = await items(ids), await items.bag(ids * 7, torch.arange(len(ids)))
            loss = rows.square().sum() + (bags - 1).square().sum()
            await ctx.backward(loss, step=items.optimizer)
            return loss.item()

        while not until.is_set() or len(self.losses) < least:
            if turns is not None:
                await turns.acquire()
            self.losses.append(await self.ps.run(step, drawn(len(self.losses), 100)[:16], attempts=20))

    def check(self, name: str, routing: Routing) -> None:
        """Checks that each slot has one owner, and that all owners agree on which."""
        count = torch.zeros_like(routing.of_slot)
        for owner in self.owners.values():
            if owner.name in routing.owners:
                own = hosted(owner, name).routing.slots(owner.name)
                assert torch.equal(own, routing.slots(owner.name))
                count += own
        assert (count == 1).all()


async def group(stack: AsyncExitStack, folder: Path, durability: str = MODES[0]) -> Group:
    owners = {
        name: await stack.enter_async_context(Owner(folder / name, name, durability=durability)) for name in NAMES
    }
    return Group(owners, await stack.enter_async_context(tc.connect(*(each.address for each in owners.values()))))


@pytest.mark.parametrize("victim", ["source", "target"])
async def test_an_owner_that_is_killed_at_any_moment_of_a_move(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, victim: str
) -> None:
    """At most one is killed in each attempt of a move. The trainer makes a few passes during each attempt."""
    original = Move._call
    left = {*((each, "after") for each in AFTER[victim]), *((each, "before") for each in BEFORE[victim])}
    attempts: set[str] = set()
    turns = asyncio.Semaphore(0)

    async with AsyncExitStack() as stack:
        moved = await group(stack, tmp_path / "moved")
        mover = await stack.enter_async_context(tc.connect(*(each.address for each in moved.owners.values())))

        async def call(move: Move, owner: str, method: str, *args: Any) -> Any:
            async def at(when: str) -> None:
                if (method, when) in left and move._id not in attempts:
                    left.remove((method, when))
                    attempts.add(move._id)
                    await moved.owners[getattr(move, f"_{victim}")].crash()

            if method in WITH_PASSES:
                turns.release()
            await at("before")
            result = await original(move, owner, method, *args)
            await at("after")
            return result

        monkeypatch.setattr(Move, "_call", call)
        items, own, done = await table_of(moved.ps, "items"), await table_of(mover, "items"), asyncio.Event()
        training = asyncio.ensure_future(moved.train(items, done, turns=turns))
        source, target = "ps0", "ps2"
        while left:
            before = len(left)
            await mover.drain(source, target, [own], pause=5.0)  # passes take long beside other programs
            assert len(left) < before
            assert sorted(own.owners) == sorted({"ps0", "ps1", "ps2"} - {source})
            moved.check("items", own.routing)
            source, target = target, source
        done.set()
        turns.release()
        await training
        found = await rows_of(items)
        for owner in moved.owners.values():
            await owner.crash()
        assert await rows_of(items) == found
        moved.check("items", await items.follower.follow_all())

        plain = await group(stack, tmp_path / "plain", "off")
        await plain.train(await table_of(plain.ps, "items"), done, len(moved.losses))
        assert plain.losses == moved.losses
        assert await rows_of(await plain.ps.table("items")) == found


async def test_a_move_whose_program_is_gone_is_finished_by_trainers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program ends between the release of the slots and all that follows; then both owners are killed."""
    original = Move._call

    class Gone(Exception):
        pass

    async def call(move: Move, owner: str, method: str, *args: Any) -> Any:
        result = await original(move, owner, method, *args)
        if method == "release" and result is not None:  # or the table was not closed any more
            monkeypatch.setattr(Move, "_call", gone)
            raise Gone
        return result

    async def gone(*_: Any) -> Any:
        raise Gone

    async with AsyncExitStack() as stack:
        moved = await group(stack, tmp_path)
        items = await table_of(moved.ps, "items")
        ended = asyncio.Event()
        ended.set()
        await moved.train(items, ended, 5)
        before = await rows_of(items)
        async with tc.connect(*(each.address for each in moved.owners.values())) as mover:
            monkeypatch.setattr(Move, "_call", call)
            with pytest.raises(Gone):
                await mover.drain("ps0", "ps2", ["items"])
        assert not hosted(moved.owners["ps2"], "items").routing.slots("ps2").any()
        await asyncio.gather(moved.owners["ps0"].crash(), moved.owners["ps2"].crash())
        assert items.owners == ["ps0", "ps1"]
        await moved.train(items, ended, 10)
        assert items.owners == ["ps1", "ps2"]
        moved.check("items", items.routing)
        assert before.keys() <= (await rows_of(items)).keys()
        plain = await group(stack, tmp_path / "plain", "off")
        await plain.train(await table_of(plain.ps, "items"), ended, 10)
        assert plain.losses == moved.losses
        assert await rows_of(await plain.ps.table("items")) == await rows_of(items)


@pytest.mark.parametrize("restart", [Owner.crash, Owner.restart], ids=["killed", "stopped"])
async def test_rows_stay_that_were_released_to_an_owner_that_was_killed_before_it_heard_of_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restart: Any
) -> None:
    """Another move begins there, with what it knew before."""
    original = Move._call

    async def call(move: Move, owner: str, method: str, *args: Any) -> Any:
        if method == "agree" and "release" in called:
            table = hosted(moved.owners["ps2"], "items")
            assert table.purge(0, "another") is None
            with pytest.raises(tc.errors.RowsMovedError, match="has ended this move"):
                table.is_ready(move._id)
        result = await original(move, owner, method, *args)
        called.append(method)
        if method == "is_ready":
            await restart(moved.owners["ps2"])
        return result

    called: list[str] = []
    async with AsyncExitStack() as stack:
        moved, ended = await group(stack, tmp_path), asyncio.Event()
        items = await table_of(moved.ps, "items")
        ended.set()
        await moved.train(items, ended, 5)
        before = await rows_of(items)
        monkeypatch.setattr(Move, "_call", call)
        await moved.ps.drain("ps0", "ps2", [items], pause=10.0)
        assert called.count("is_ready") == 1
        assert items.owners == ["ps1", "ps2"]
        assert await rows_of(items) == before


async def test_checkpoints_have_what_has_moved(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        moved = await group(stack, tmp_path)
        items, ended = await table_of(moved.ps, "items"), asyncio.Event()
        ended.set()
        await moved.train(items, ended, 5)
        await moved.ps.drain("ps0", "ps2", [items])
        for owner in moved.owners.values():
            await checkpoint(owner)
        await moved.train(items, ended, 8)
        await moved.ps.rebalance([items])
        before = await rows_of(items)
        for owner in moved.owners.values():
            await owner.crash()
        assert await rows_of(items) == before
        for owner in moved.owners.values():
            await owner.restart()
        assert await rows_of(items) == before
        assert items.owners == list(NAMES)
        await moved.train(items, ended, 12)


async def test_owners_of_a_table_that_has_moved_become_others(tmp_path: Path) -> None:
    """Among them one that has no rows any more, and one that has not heard of the last move."""
    async with AsyncExitStack() as stack:
        moved = await group(stack, tmp_path, "off")
        items, ended = await table_of(moved.ps, "items"), asyncio.Event()
        ended.set()
        await moved.train(items, ended, 5)
        await moved.ps.drain("ps0", "ps2", [items])
        await moved.train(items, ended, 8)
        before = await rows_of(items)
        for owner in moved.owners.values():
            await owner.server.drain(20)
    folders = [tmp_path / name for name in NAMES]
    reshard(folders, tmp_path / "two", Wanted(2, {"ps2": "ps0"}, {}))
    async with AsyncExitStack() as stack:
        owners = [await stack.enter_async_context(Owner(tmp_path / "two" / each, each)) for each in ("ps0", "ps1")]
        ps = await stack.enter_async_context(tc.connect(*(each.address for each in owners)))
        items = await ps.table("items")
        assert items.owners == ["ps0", "ps1"]
        assert await rows_of(items) == before


@pytest.mark.parametrize("restart", [Owner.crash, Owner.restart], ids=["killed", "stopped"])
async def test_a_pass_that_is_run_again_counts_once_although_its_rows_have_moved(tmp_path: Path, restart: Any) -> None:
    async with AsyncExitStack() as stack:
        moved = await group(stack, tmp_path)
        mover = await stack.enter_async_context(tc.connect(*(each.address for each in moved.owners.values())))
        items = await table_of(moved.ps, "items", tc.tables.SGD(1.0), owners=["ps0"], init=tc.tables.Zeros())
        ids, attempts = torch.arange(40), []

        async def step(ctx: tc.Context) -> None:
            loss = (await items(ids)).sum()
            attempts.append(loss.item())
            await ctx.backward(loss, step=items.optimizer)
            if len(attempts) == 1:  # as if another owner had been killed
                raise tc.errors.ContextLostError("lost")

        async def attach() -> None:
            await mover.drain("ps0", "ps1", ["items"], pause=10.0)
            await restart(moved.owners["ps1"])
            await mover.drain("ps1", "ps2", ["items"], pause=10.0)
            await restart(moved.owners["ps2"])

        await moved.ps.run(step, attach=attach, attempts=20)  # one may begin before it hears of a kill
        assert len(attempts) >= 2
        assert items.owners == ["ps2"]
        assert (await items(ids) == -1.0).all()


@pytest.mark.parametrize("restart", [Owner.crash, Owner.restart], ids=["killed", "stopped"])
async def test_a_step_that_some_owners_have_applied_counts_once_for_each_row(tmp_path: Path, restart: Any) -> None:
    async with AsyncExitStack() as stack:
        moved = await group(stack, tmp_path)
        mover = await stack.enter_async_context(tc.connect(*(each.address for each in moved.owners.values())))
        owners, ids, attempts = ["ps0", "ps1"], torch.arange(40), []
        items = await table_of(moved.ps, "items", tc.tables.SGD(1.0), owners=owners, init=tc.tables.Zeros())

        async def step(ctx: tc.Context) -> None:
            first = ids[items.routing.slots("ps0")[slots_of(ids)]]
            loss = (await items(ids if attempts else first)).sum()
            attempts.append(loss.item())
            await ctx.backward(loss, step=items.optimizer)
            if len(attempts) < 3:
                raise tc.errors.ContextLostError("lost")

        async def attach() -> None:
            target = "ps2" if len(attempts) == 1 else "ps0"
            await mover.rebalance(["items"], [target], pause=10.0)
            await restart(moved.owners[target])

        await moved.ps.run(step, attach=attach, attempts=20)  # one may begin before it hears of a kill
        assert len(attempts) >= 3 and items.owners == ["ps0"]
        assert (await items(ids) == -1.0).all()
