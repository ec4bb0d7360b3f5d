"""Owners that were killed are restored into others with all that their logs have."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn, optim

import trainer_client as tc
from ps_service.cli import restore_view
from ps_service.durability.point_in_time import BuiltState, Moment, build_held
from ps_service.durability.resharding.reshard import Result, reshard
from ps_service.durability.store import CheckpointError, checkpoints_in, parsed
from tests.forking.process import Forking
from tests.integration.restarting import Owner
from tests.integration.restarts.conftest import Action, checkpoint
from tests.integration.restarts.test_replay import hashed, made, states, states_in, steps


def rebuild(folder: Path, output: Path) -> BuiltState:
    return build_held(folder, Moment(), output, made)


def names_in(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


async def restored(given: Sequence[Path], to: Path, owners: str, *objects: str, **more: Any) -> Result:
    wanted = restore_view.wanted(owners, objects, ())
    return await asyncio.to_thread(lambda: reshard(given, to, wanted, rebuild=rebuild, **more))


@pytest.fixture
async def killed(tmp_path: Path) -> tuple[list[Path], list[Any]]:
    """The data directories of two owners: one with a checkpoint and a log, and one with a log only."""
    folders = [tmp_path / "ps0", tmp_path / "ps1"]
    found = []
    for name, folder in zip("ab", folders, strict=True):
        async with Owner(folder, folder.name, durability="always") as owner, tc.connect(owner.address) as ps:
            await steps(ps, 3, name)
            if name == "a":
                await asyncio.to_thread(owner.server.engine.checkpoints.write)
                await steps(ps, 2, name)
            found.append(await states(ps, name))
    return folders, found


async def test_what_is_in_the_logs_is_there(killed: tuple[list[Path], list[Any]], tmp_path: Path) -> None:
    folders, expected = killed
    before = [hashed(each) for each in folders]
    new = tmp_path / "new"
    dry = await restored(folders, new, "ps0,other", "ps1=other", dry_run=True)
    assert not new.exists()
    result = await restored(folders, new, "ps0,other", "ps1=other")
    assert result.objects == dry.objects == {"ps0": ["a", "a.optimizer"], "other": ["b", "b.optimizer"]}
    assert [hashed(each) for each in folders] == before
    assert names_in(tmp_path) == ["new", "ps0", "ps1"]  # nothing temporary is left
    assert await states_in(new / "ps0", "a") == expected[0]
    async with Owner(new / "other", "other") as owner, tc.connect(owner.address) as ps:
        assert await states(ps, "b") == expected[1]


async def test_the_checkpoint_before_a_damaged_one_and_the_log_are_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "ps0"
    async with Owner(folder, "ps0", durability="always") as owner, tc.connect(owner.address) as ps:
        await steps(ps, 3, "a")
        for _ in range(2):
            await asyncio.to_thread(owner.server.engine.checkpoints.write)
            await steps(ps, 2, "a")
        expected = await states(ps, "a")
    # At last only the log is left, which goes back to its beginning.
    for number, each in enumerate(checkpoints_in(folder)):
        (each / "state.pb").write_bytes(b"")
        before = hashed(folder)
        await restored([folder], tmp_path / f"new{number}", "ps0")
        assert "the one before it and the log are used" in caplog.text
        assert await states_in(tmp_path / f"new{number}" / "ps0", "a") == expected
        assert hashed(folder) == before


async def quiet_checkpoint(owner: Owner) -> Path:
    """A checkpoint during which the log got nothing. The end of a pass may still come."""
    while True:
        folder = await checkpoint(owner)
        found = parsed(folder)
        if found.whole == found.position:
            return folder


async def test_a_checkpoint_by_its_own_folder_is_one_moment_or_refused(
    tmp_path: Path, between: Callable[[Action], None]
) -> None:
    async with Owner(tmp_path / "ps0", "ps0", durability="always") as owner, tc.connect(owner.address) as ps:
        await steps(ps, 3, "a")
        quiet, expected = await quiet_checkpoint(owner), await states(ps, "a")
        between(lambda: steps(ps, 1, "a"))
        busy, later = await checkpoint(owner), await states(ps, "a")
    await restored([quiet], tmp_path / "quiet", "ps0")
    assert await states_in(tmp_path / "quiet" / "ps0", "a") == expected
    with pytest.raises(CheckpointError, match=rf"{busy.name} was written while .* needs the log: give the data"):
        await restored([busy], tmp_path / "busy", "ps0")
    assert not (tmp_path / "busy").exists()
    await restored([tmp_path / "ps0"], tmp_path / "all", "ps0")
    assert await states_in(tmp_path / "all" / "ps0", "a") == later


async def test_times_are_those_of_the_logs(killed: tuple[list[Path], list[Any]], tmp_path: Path) -> None:
    folders, _ = killed
    with pytest.raises(CheckpointError, match=r"that of '\w+' was written at .* s later \(--apart allows 1e-09\)"):
        await restored(folders, tmp_path / "new", "1", apart=1e-9)


async def test_a_directory_with_neither_a_checkpoint_nor_a_log_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ps0").mkdir()
    with pytest.raises(CheckpointError, match="has no checkpoint: give the data directory of each owner"):
        await restored([tmp_path / "ps0"], tmp_path / "new", "1")


async def test_the_command_applies_logs(killed: tuple[list[Path], list[Any]], tmp_path: Path, forking: Forking) -> None:
    folders, expected = killed
    given = [argument for each in folders for argument in ("--from", str(each))]
    options = ("--owners", "ps0", "--objects", "ps1=ps0", "--to", str(tmp_path / "new"))
    async with aclosing(await forking.begin("ps_service", "restore", *given, *options, errors=True)) as command:
        out, errors = await command.communicate()
        assert command.returncode == 0, (out + errors).decode()
    assert "ps0 also has a, a.optimizer, b, b.optimizer" in out.decode()
    async with Owner(tmp_path / "new" / "ps0") as owner, tc.connect(owner.address) as ps:
        assert [await states(ps, "a"), await states(ps, "b")] == expected


@pytest.mark.parametrize("policy", [None, tc.policies.Quorum(1)], ids=str)
async def test_owners_of_an_optimizer_may_swap_their_names(tmp_path: Path, policy: tc.policies.Policy | None) -> None:
    async def train(folder: Path, places: Sequence[str], parts: Sequence[int]) -> dict[str, int]:
        async with AsyncExitStack() as stack:
            owners = [
                await stack.enter_async_context(Owner(folder / name, name, durability="always"))
                for name in ("ps0", "ps1")
            ]
            ps = await stack.enter_async_context(tc.connect(*(each.address for each in owners)))
            nets = [
                await ps.module(nn.Linear, 2, 1, name=f"net{number}", owner=owner)
                for number, owner in enumerate(places)
            ]
            parameters = [parameter for net in nets for parameter in net.parameters()]
            opt = await ps.optimizer(optim.SGD, parameters, lr=0.1, name="opt", policy=policy)
            for part in parts:
                async with ps.context() as ctx:
                    losses = torch.stack([(await net(torch.ones(1, 2))).sum() for net in nets[:part]])
                    stepped = await ctx.backward(losses.sum(), step=opt)
            return dict(stepped)

    found = await train(tmp_path / "old", ["ps0", "ps1"], [1, 1, 2, 2])
    given = [tmp_path / "old" / name for name in ("ps0", "ps1")]
    await restored(given, tmp_path / "new", "ps0,ps1", "ps0=ps1", "ps1=ps0")
    after = await train(tmp_path / "new", ["ps1", "ps0"], [2])
    assert after == {"ps0": found["ps1"] + 1, "ps1": found["ps0"] + 1}
