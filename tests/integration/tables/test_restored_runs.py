"""Tests of passes that are run again, of whose steps owners had applied theirs before they were restored elsewhere."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn, optim

import trainer_client as tc
from ps_service.durability.store import checkpoints_in, parsed
from ps_wire.tables.routing import slots_of
from ps_wire.v1 import operations_pb2 as pb
from tests.integration.restarting import Owner
from tests.integration.restarts.test_restoring_logs import rebuild
from tests.integration.tables.test_resharding import restored
from tests.training import apart
from trainer_client.handles.object_moves import ObjectMove
from trainer_client.tables.moves import Move

IDS = torch.arange(60)


class Training:
    """A table, and a layer with its optimizer on one owner."""

    def __init__(self, ps: tc.Client) -> None:
        self._ps = ps

    async def make(self) -> None:
        await self._ps.table("items", 2, tc.tables.SGD(1.0), init=tc.tables.Zeros())
        await self.attach()

    async def attach(self) -> None:
        ps = self._ps
        self.items = await ps.table("items")
        self.net = await ps.module(nn.Linear, 2, 1, name="net", owner="ps0", seed=1)
        self.opt = await ps.optimizer(optim.SGD, self.net.parameters(), lr=1.0, name="opt")

    async def step(self, ctx: tc.Context, ids: torch.Tensor) -> None:
        rows = await self.items(ids)
        loss = rows.sum() + (await self.net(torch.ones(1, 2))).sum()
        await ctx.backward(loss, step=[self.items.optimizer, self.opt])

    async def values(self) -> tuple[torch.Tensor, torch.Tensor]:
        return await self.items(IDS), (await self.net.state_dict())["bias"]


Between = Callable[[tc.Client], Awaitable[None]]


async def check(
    tmp_path: Path, after: list[str], first: str, between: Between | None = None, durability: str = "off"
) -> None:
    """Trains in a pass whose first attempt has applied what the first owner has, or both have, before the owners are
    stopped and restored. Before that, another program may do something, too."""
    old, new = tmp_path / "old", tmp_path / "new"
    async with AsyncExitStack() as stack:
        owners = [
            await stack.enter_async_context(Owner(old / name, name, durability=durability)) for name in ("ps0", "ps1")
        ]
        addresses = [each.address for each in owners]
        ps = await stack.enter_async_context(tc.connect(*addresses))
        training = Training(ps)
        await training.make()
        rows, bias = await training.values()
        # As if the owners of all other ids had been killed before they could step.
        part = IDS if first == "both" else IDS[training.items.routing.slots(first)[slots_of(IDS)]]
        attempts: list[torch.Tensor] = []

        async def step(ctx: tc.Context) -> None:
            attempts.append(IDS if attempts else part)
            await training.step(ctx, attempts[-1])
            if len(attempts) == 1:
                raise tc.errors.ContextLostError("lost")

        async def attach() -> None:
            if len(attempts) == 1 and not new.exists():
                if between is not None:
                    async with tc.connect(*addresses) as other:
                        await between(other)
                for each in owners:
                    await each.server.drain(20)
                await restored(old, new, after, rebuild=rebuild)
                for each in owners[: len(after)]:
                    each.folder = new / each.name
                    await each.start()
            await training.attach()

        await ps.run(step, attach=attach, attempts=5)
        found, layer = await training.values()
        assert torch.equal(found, rows - 1), found
        assert torch.equal(layer, bias - 1)
        await ps.run(step, attach=attach)
        found, layer = await training.values()
        assert torch.equal(found, rows - 2) and torch.equal(layer, bias - 2)


@pytest.mark.parametrize("after", [["ps0"], ["ps0", "ps1"]], ids=["one owner", "as many"])
@pytest.mark.parametrize("first", ["ps0", "ps1", "both"])
async def test_what_was_applied_before_a_restore_counts_once(tmp_path: Path, after: list[str], first: str) -> None:
    await check(tmp_path, after, first)


class Gone(Exception):
    """The program that moves something is killed."""


def ends_after(monkeypatch: pytest.MonkeyPatch, move: type[Any], action: Any) -> None:
    """A program that moves something is killed once the source has given it away."""
    original, is_gone = move._call, list[bool]()

    async def call(self: Any, asked: Any, part: Any, *args: Any, **fields: Any) -> Any:
        if is_gone:
            raise Gone
        result = await original(self, asked, part, *args, **fields)
        if part == action and result:
            is_gone.append(True)
            raise Gone
        return result

    monkeypatch.setattr(move, "_call", call)


@pytest.mark.parametrize("after", [["ps0"], ["ps0", "ps1"]], ids=["one owner", "as many"])
@pytest.mark.parametrize("first", ["ps0", "ps1", "both"])
async def test_of_slots_that_were_given_away_to_an_owner_that_has_not_heard_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: list[str], first: str
) -> None:
    async def move(other: tc.Client) -> None:
        with pytest.raises(Gone):
            await other.rebalance(["items"], ["ps1"])

    ends_after(monkeypatch, Move, "release")
    await check(tmp_path, after, first, move)


async def test_of_an_optimizer_that_was_given_away_to_an_owner_that_has_not_heard_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def move(other: tc.Client) -> None:
        with pytest.raises(Gone):
            await other.move("net", to="ps1")

    ends_after(monkeypatch, ObjectMove, pb.MOVE_RELEASE)
    await check(tmp_path, ["ps0", "ps1"], "both", move, "always")


async def test_a_gradient_of_a_round_that_begins_anew_counts_in_that(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    async with Owner(old / "ps0", "ps0", durability="always") as owner, tc.connect(owner.address) as ps:
        await ps.table("items", 2, tc.tables.SGD(1.0), init=tc.tables.Zeros(), policy=tc.policies.Quorum(2))
        counted: list[int] = []

        async def step(ctx: tc.Context) -> None:
            items = await ps.table("items")
            stepped = await ctx.backward((await items(IDS)).sum(), step=items.optimizer)
            counted.append(stepped.counted)
            if len(counted) == 1:
                raise tc.errors.ContextLostError("lost")

        async def attach() -> None:
            if len(counted) == 1 and not new.exists():
                await owner.server.stop()  # in order, it would end the round
                await restored(old, new, ["ps0"], rebuild=rebuild)
                owner.folder = new / "ps0"
                await owner.start()

        for _ in range(2):
            await ps.run(step, attach=attach, attempts=5)
        assert counted == [0, 0, 2]
        items = await ps.table("items")
        assert (await items(IDS)).unique().tolist() == [-1.0]


@pytest.mark.parametrize(("names", "kept"), [(["ps0", "ps1"], 2), (["a", "b"], 1)], ids=["rounds go on", "anew"])
async def test_of_rounds_over_owners(tmp_path: Path, names: list[str], kept: int) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    async with AsyncExitStack() as stack:
        owners = [
            await stack.enter_async_context(Owner(old / f"ps{each}", f"ps{each}", durability="always"))
            for each in range(2)
        ]
        ps = await stack.enter_async_context(tc.connect(*(each.address for each in owners)))
        nets = [await ps.module(nn.Linear, 2, 1, name=f"net{each}", owner=f"ps{each}") for each in range(2)]
        parameters = [each for net in nets for each in net.parameters()]
        opt = await ps.optimizer(optim.SGD, parameters, lr=1.0, name="opt", policy=tc.policies.Quorum(1))

        async def step(ctx: tc.Context) -> None:
            losses = [(await net(torch.ones(1, 2))).sum() for net in nets]
            await ctx.backward(torch.stack(losses).sum(), step=opt)

        async def twice() -> None:
            await ps.run(step)
            await opt.set_policy(tc.policies.Quorum(2))
            await ps.run(step)

        async def around(ctx: tc.Context) -> None:
            await apart(twice())
            for each in owners:
                await each.server.stop()

        with suppress(tc.errors.PsError):
            await ps.run(around, attempts=1)  # as long as it goes on, it is remembered what those within have applied
    homes = dict(zip(["ps0", "ps1"], names, strict=True))
    await restored(old, new, names, homes=homes, rebuild=rebuild)
    runs = parsed(checkpoints_in(new / names[0])[0]).runs
    assert sum(len(each.places) for each in runs) == kept
