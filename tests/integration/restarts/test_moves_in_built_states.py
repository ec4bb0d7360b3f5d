"""Objects that move are one owner's alone, also in the checkpoints that no stop of an owner with a log writes."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import trainer_client as tc
from ps_service.durability.log.disk import Disk
from ps_service.durability.log.segments import Segments
from ps_service.durability.point_in_time import Moment, build
from ps_service.durability.store import CheckpointError, checkpoints_in, parsed
from ps_wire.v1 import operations_pb2 as pb
from ps_wire.v1.checkpoint_pb2 import MOVE_STATE_ARRIVING
from tests.integration.restarting import Owner
from tests.integration.restarts.conftest import checkpoint
from tests.integration.restarts.test_killed_object_moves import NAMES, Pair, pair
from tests.integration.restarts.test_replay import made
from tests.integration.restarts.test_restoring_logs import restored
from trainer_client.handles.object_moves import ObjectMove

BEFORE = {pb.MOVE_MAKE: "ps0", pb.MOVE_ARRIVE: "ps0", pb.MOVE_RELEASE: "ps1"}
"""After which part of a move both owners are killed, and whose the objects are then."""


class Gone(Exception):
    """The program that moves objects is killed."""


@pytest.fixture(params=list(BEFORE), ids=pb.MoveAction.Name)
async def killed(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Path, str, Any]:
    """The folder with the data directories of owners that were killed, with the program, after a part of a move; the
    owner that has what was moved, and its state."""
    original = ObjectMove._call

    async def call(move: ObjectMove, session: Any, action: Any, *args: Any, **fields: Any) -> Any:
        if is_gone:
            raise Gone
        result = await original(move, session, action, *args, **fields)
        if action == request.param and (action != pb.MOVE_RELEASE or result):
            is_gone.append(True)
            raise Gone
        return result

    is_gone: list[bool] = []
    monkeypatch.setattr(ObjectMove, "_call", call)
    folder, ended = tmp_path / "killed", asyncio.Event()
    ended.set()
    async with AsyncExitStack() as stack:
        moved = await pair(stack, folder, "always")
        await moved.train(ended, 3)
        state = await moved.state()
        with pytest.raises(Gone):
            await moved.ps.move("net", to="ps1")
    return folder, BEFORE[request.param], state


async def check(folder: Path, owner: str, state: Any, source: str = "ps0", names: Sequence[str] = NAMES) -> None:
    """Starts owners, and checks which one has the objects, also for those that ask the owner which had them first."""
    async with AsyncExitStack() as stack:
        owners = {
            name: await stack.enter_async_context(Owner(folder / name, name, durability="always")) for name in names
        }
        ps = await stack.enter_async_context(tc.connect(*(each.address for each in owners.values())))
        net = await ps.module(nn.Linear, 4, 3, name="net", seed=1, owner=source)
        found = Pair(owners, ps, net, await ps.optimizer(torch.optim.Adam, net.parameters(), lr=0.1))
        assert (net.owner, net.was_made, found.has()) == (owner, False, [owner])
        assert await found.state() == state


async def test_a_state_that_was_built_for_a_moment(killed: tuple[Path, str, Any], tmp_path: Path) -> None:
    folder, owner, state = killed
    for name in ("ps0", "ps1"):
        await asyncio.to_thread(build, folder / name, Moment(), tmp_path / "built" / name, made)
    await check(tmp_path / "built", owner, state)


async def test_a_checkpoint_of_an_owner_that_goes_on_without_a_log(killed: tuple[Path, str, Any]) -> None:
    folder, owner, state = killed
    for name in ("ps0", "ps1"):
        async with Owner(folder / name, name) as running:
            await checkpoint(running)
    await check(folder, owner, state)


@pytest.mark.parametrize(
    ("owners", "homes"),
    [
        ("ps0,ps1", {"ps0": "ps0", "ps1": "ps1"}),
        ("a,b", {"ps0": "b", "ps1": "a"}),
        ("ps1", {"ps0": "ps1", "ps1": "ps1"}),
    ],
)
async def test_owners_that_were_restored_from_all(
    killed: tuple[Path, str, Any], tmp_path: Path, owners: str, homes: dict[str, str]
) -> None:
    folder, owner, state = killed
    objects = [f"{before}={after}" for before, after in homes.items()]
    result = await restored([folder / "ps0", folder / "ps1"], tmp_path / "new", owners, *objects)
    assert {each: names for each, names in result.objects.items() if names} == {homes[owner]: ["net", "net.optimizer"]}
    await check(tmp_path / "new", homes[owner], state, homes["ps0"], owners.split(","))


@pytest.mark.parametrize("given", ["ps0", "ps1"])
async def test_an_owner_that_was_restored_alone(killed: tuple[Path, str, Any], tmp_path: Path, given: str) -> None:
    folder, owner, state = killed
    await restored([folder / given], tmp_path / "new", given)
    shutil.rmtree(folder / given)
    (tmp_path / "new" / given).rename(folder / given)
    await check(folder, owner, state)


@pytest.mark.parametrize("killed", [pb.MOVE_ARRIVE, pb.MOVE_RELEASE], indirect=True, ids=pb.MoveAction.Name)
async def test_the_owner_that_is_succeeded_has_to_tell_whose_it_is(
    killed: tuple[Path, str, Any], tmp_path: Path
) -> None:
    folder, _, _ = killed
    with pytest.raises(CheckpointError, match=r"'net', 'net.optimizer' was moving from owner 'ps0' .*: give it, too"):
        await restored([folder / "ps1"], tmp_path / "new", "ps0", "ps1=ps0")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("killed", [pb.MOVE_RELEASE], indirect=True, ids=pb.MoveAction.Name)
async def test_a_state_of_before_the_copy_was_whole_is_refused_beside_one_of_after_the_release(
    killed: tuple[Path, str, Any], tmp_path: Path
) -> None:
    folder, _, _ = killed
    ends = [each.end for each in Segments(folder / "ps1", Disk()).records(0)]
    seen = []
    for number, position in enumerate(ends):
        early, new = tmp_path / f"early{number}", tmp_path / f"new{number}"
        await asyncio.to_thread(build, folder / "ps1", Moment({}, position), early, made)
        seen += [each.state for each in parsed(checkpoints_in(early)[0]).moves]
        if seen[-1:] == [MOVE_STATE_ARRIVING]:
            with pytest.raises(
                CheckpointError, match=r"different moments: .* has left 'ps0' for 'ps1', which does not"
            ):
                await restored([folder / "ps0", early], new, "2")
            break
    assert seen == [MOVE_STATE_ARRIVING]
