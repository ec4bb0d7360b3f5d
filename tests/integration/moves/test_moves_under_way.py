"""Tests of moves of named objects that are given up, held up, or whose objects are deleted."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from contextvars import Context
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import trainer_client as tc
from ps_service.durability.moving import moves as object_moves
from ps_wire.v1 import operations_pb2 as pb
from tests.integration.restarting import WEIGHTED, Owner
from tests.owner_groups import OwnerGroup
from tests.waiting import until
from trainer_client.handles.object_moves import ObjectMove

DURABLE = "interval:1"


@pytest.mark.parametrize("at", ["ps0", "ps1"])
@pytest.mark.parametrize("seconds", [0.0, 300.0], ids=["long ago", "just now"])
async def test_an_owner_frees_what_it_has_of_a_move_whose_program_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, at: str
) -> None:
    original, begun = ObjectMove._call, list[ObjectMove]()

    class Gone(Exception):
        pass

    async def call(move: ObjectMove, session: Any, action: Any, *args: Any, **fields: Any) -> Any:
        if begun or action == pb.MOVE_MAKE:
            begun[:] = [move]
            raise Gone
        return await original(move, session, action, *args, **fields)

    monkeypatch.setattr(ObjectMove, "_call", call)
    monkeypatch.setattr(object_moves, "STAGED_SECONDS", seconds)
    async with AsyncExitStack() as stack:
        owners = {
            name: await stack.enter_async_context(Owner(tmp_path / name, name, durability=DURABLE))
            for name in ("ps0", "ps1")
        }
        ps = await stack.enter_async_context(tc.connect(*[each.address for each in owners.values()]))
        await ps.module(nn.Linear, 4, 3, name="net", seed=1)
        with pytest.raises(Gone):
            await ps.move("net", to="ps1")
        owners[at].server.servicer.sweep()
        (move,) = begun
        if at == "ps0":
            going_on, lacks = original(move, move._source, pb.MOVE_READ, again=True), "has ended this move"
        else:
            going_on = original(move, move._target, pb.MOVE_MAKE, owner="ps0")
            lacks = "does not have all of the contents of this move"
        if seconds:
            await going_on
        else:
            with pytest.raises(tc.errors.StaleHandleError, match=lacks):
                await going_on


async def test_an_owner_keeps_what_is_staged_while_a_move_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, begun, waits, used = ObjectMove._call, list[Any](), list[float](), list[float]()

    async def call(move: ObjectMove, session: Any, action: Any, *args: Any, **fields: Any) -> Any:
        if action == pb.MOVE_CLOSE and waits:  # after a pause in vain
            moves: Any = second.server.engine.moves.serve
            used.extend(each.used - waits[-1] for each in moves.__self__._staged.values())
        if action == pb.MOVE_BEGIN:
            begun.append(action)
        result = await original(move, session, action, *args, **fields)
        if action == pb.MOVE_REOPEN:
            waits.append(time.monotonic())
        return result

    monkeypatch.setattr(ObjectMove, "_call", call)
    async with AsyncExitStack() as stack:
        first, second = [
            await stack.enter_async_context(Owner(tmp_path / name, name, durability=DURABLE)) for name in ("ps0", "ps1")
        ]
        ps, other = [await stack.enter_async_context(tc.connect(first.address, second.address)) for _ in range(2)]
        net = await ps.module(nn.Linear, 4, 3, name="net", seed=1)
        async with ps.context() as ctx:
            loss = (await net(torch.ones(1, 4))).sum()
            moving = asyncio.get_running_loop().create_task(
                asyncio.wait_for(other.move("net", to="ps1", pause=0.05), 60), context=Context()
            )
            await until(lambda: len(waits) > 2)
            await ctx.backward(loss)
        await moving
        assert len(begun) == 1 and len(used) >= 2 and min(used) >= 0.0, "it was heard of after each"
        assert net.owner == "ps0" and (await net(torch.ones(1, 4))) is not None and net.owner == "ps1"


# Each of two of these together.
@pytest.mark.parametrize(
    ("drained", "gone", "action"),
    [
        (bool(number % 2) == (gone == "net"), gone, action)
        for gone in ("net", "net.optimizer")
        for number, action in enumerate((pb.MOVE_READ, pb.MOVE_MAKE, pb.MOVE_CLOSE, pb.MOVE_RELEASE))
    ],
)
async def test_an_object_is_deleted_while_it_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drained: bool, gone: str, action: Any
) -> None:
    # With a module its optimizer goes.
    original, left = ObjectMove._call, [] if gone == "net" else ["net"]
    begun: list[ObjectMove] = []

    async def call(move: ObjectMove, session: Any, called: Any, *args: Any, **fields: Any) -> Any:
        if called == action and not begun:
            begun.append(move)
            await ps.delete(gone)
        return await original(move, session, called, *args, **fields)

    async with AsyncExitStack() as stack:
        owners = [
            await stack.enter_async_context(Owner(tmp_path / name, name, durability=DURABLE)) for name in ("ps0", "ps1")
        ]
        ps, other = [await stack.enter_async_context(tc.connect(*[each.address for each in owners])) for _ in range(2)]
        net = await ps.module(nn.Linear, 4, 3, name="net", seed=1)
        await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1, name="net.optimizer")
        monkeypatch.setattr(ObjectMove, "_call", call)
        if drained:
            moves: Any = await other.drain("ps0", "ps1")
            assert [name for each in moves for name in each.names] == left
        elif left:
            assert (await other.move("net", "ps1")).names == ("net",)
        else:
            with pytest.raises(tc.errors.UnknownNameError, match=r"'net' was deleted while it moved to owner 'ps1'"):
                await other.move("net", "ps1")
        assert [each.name for each in (await ps.status("ps1")).objects if each.name] == left


@pytest.mark.parametrize("knows", [True, False], ids=["knows it", "does not"])
async def test_an_object_is_found_when_an_owner_on_its_way_has_ended(tmp_path: Path, knows: bool) -> None:
    async with AsyncExitStack() as stack:
        owners = [
            await stack.enter_async_context(Owner(tmp_path / name, name, durability=DURABLE))
            for name in ("ps0", "ps1", "ps2")
        ]
        addresses = [each.address for each in owners]
        ps = await stack.enter_async_context(tc.connect(*addresses))
        late = await stack.enter_async_context(tc.connect(*addresses[: 3 if knows else 2], reconnect_timeout=0.1))
        await ps.module(nn.Linear, 4, 3, name="net", seed=1)
        its: Any = await late.attach("net")
        await ps.move("net", to="ps1")
        await ps.move("net", to="ps2", owner="ps1")
        await owners[1].server.stop()
        if knows:
            assert (await its(torch.ones(1, 4))).shape == (1, 3) and its.owner == "ps2"
        else:
            with pytest.raises(tc.errors.UnavailableError, match="If it has moved on from there, connect with"):
                await its(torch.ones(1, 4))


async def test_owners_that_have_joined_since_are_asked_where_an_object_is() -> None:
    async with OwnerGroup() as group:
        await group.enter("ps0")
        async with tc.connect(directory=group.directory) as ps:
            await group.enter("ps1")
            assert sorted(each.owner for each in await ps.others.all_there()) == ["ps0", "ps1"]


@pytest.mark.parametrize("drained", [True, False], ids=["drained", "moved"])
async def test_what_was_made_from_an_object_that_was_deleted_stays(tmp_path: Path, drained: bool) -> None:
    async with AsyncExitStack() as stack:
        owners = [
            await stack.enter_async_context(Owner(tmp_path / name, name, durability=DURABLE)) for name in ("ps0", "ps1")
        ]
        ps = await stack.enter_async_context(tc.connect(*[each.address for each in owners]))
        inner = await ps.module(nn.Linear, 4, 3, name="inner", owner="ps0")
        await ps.module(WEIGHTED, torch.ones(2, 2), inner, name="net", owner="ps0")
        await ps.delete("inner")
        await ps.module(nn.Linear, 4, 3, name="other", owner="ps0")
        with pytest.raises(tc.errors.InvalidArgumentError, match=r"'inner'.* belongs to it, and was deleted or"):
            await (ps.drain("ps0", "ps1") if drained else ps.move("net", "ps1"))
        left = [each.name for each in (await ps.status("ps0")).objects if each.name]
        assert sorted(left) == (["net"] if drained else ["net", "other"])
