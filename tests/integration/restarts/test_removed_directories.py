"""Owners whose data directory is removed while they run acknowledge nothing that is not kept, and say why."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from torch import nn, optim

import trainer_client as tc
from ps_service import server
from tests.integration.restarting import Owner
from tests.integration.restarts.conftest import checkpoint
from tests.integration.restarts.test_killed import one_pass
from tests.integration.support import bits

REMOVED = (
    r"the log in .* cannot be written: .* was removed or renamed while its owner ran\. .*: stop the owner in order"
)


def remove(folder: Path) -> None:
    shutil.rmtree(folder)


def rename(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))


@pytest.mark.parametrize("gone", [remove, rename])
@pytest.mark.parametrize("is_made_again", [False, True], ids=["", "by a checkpoint"])
async def test_no_step_is_acknowledged_that_is_not_kept(
    tmp_path: Path, gone: Callable[[Path], None], is_made_again: bool
) -> None:
    folder = tmp_path / "ps0"
    async with Owner(folder, durability="always") as owner, tc.connect(owner.address) as ps:
        net = await ps.module(nn.Linear, 4, 2, name="net", seed=1)
        opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
        for i in range(3):
            await one_pass(ps, net, opt, i)
        gone(folder)
        if is_made_again:
            with pytest.raises(tc.errors.InternalError, match="could not be written: the log"):
                await checkpoint(owner)
        for _ in range(2):
            with pytest.raises(tc.errors.StorageError, match=REMOVED):
                await one_pass(ps, net, opt, 3)
        status = await ps.status()
        assert status.log is not None and status.log.state == "failed" and re.match(REMOVED, status.log.why)
        found = bits(await net.state_dict())
        await owner.restart()
        # It was stopped in order.
        assert bits(await net.state_dict()) == found
        await one_pass(ps, net, opt, 4)
        found = bits(await net.state_dict())
        await owner.crash()
        assert bits(await net.state_dict()) == found


@pytest.fixture
def no_other_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks but the test."""
    monkeypatch.setattr(server, "_EPOCH_SECONDS", 3600.0)


@pytest.mark.usefixtures("no_other_look")
async def test_it_is_told_although_nothing_changes(tmp_path: Path) -> None:
    folder = tmp_path / "ps0"
    async with Owner(folder, durability="interval:3600") as owner, tc.connect(owner.address) as ps:
        net = await ps.module(nn.Linear, 4, 2, name="net", seed=1)
        keeper, has_data_dir = owner.server._keeper, owner.server.engine.membership.has_data_dir
        assert keeper is not None and has_data_dir()
        shutil.rmtree(folder)
        assert not has_data_dir()
        assert await asyncio.to_thread(keeper.fenced) == ""
        await asyncio.to_thread(keeper.look_at_log)
        (event,) = [each for each in (await ps.status(events=100)).events if each.kind == "log"]
        assert event.level == "error" and re.match(REMOVED, event.text)
        with pytest.raises(tc.errors.StorageError, match=REMOVED):
            await net.load_state_dict(nn.Linear(4, 2).state_dict())


@pytest.mark.usefixtures("no_other_look")
async def test_an_owner_without_a_log_says_so_once_and_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "ps0"
    async with Owner(folder) as owner, tc.connect(owner.address) as ps:
        net = await ps.module(nn.Linear, 4, 2, name="net", seed=1)
        keeper, has_data_dir = owner.server._keeper, owner.server.engine.membership.has_data_dir
        assert keeper is not None
        for _ in range(2):
            shutil.rmtree(folder)
            for _ in range(3):
                assert await asyncio.to_thread(keeper.fenced) == ""
            assert not has_data_dir()
            await net.load_state_dict(nn.Linear(4, 2).state_dict())
            await checkpoint(owner)
            assert await asyncio.to_thread(keeper.fenced) == ""
            assert has_data_dir()
        told = [each for each in (await ps.status(events=100)).events if "was removed or renamed" in each.text]
        assert [(each.kind, each.level) for each in told] == [("checkpoint", "error")] * 2
        found = bits(await net.state_dict())
    async with Owner(folder) as owner, tc.connect(owner.address) as ps:
        assert bits(await (await ps.attach("net")).state_dict()) == found
