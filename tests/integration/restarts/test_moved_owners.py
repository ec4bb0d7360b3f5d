"""An owner of a group that goes on at another address, with its data directory; the one before is out of the group."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import trainer_client as tc
from ps_wire.v1.operations_pb2 import MembersRequest
from tests.forking.process import Forking
from tests.integration.restarting import TALLY
from tests.owner_processes import OwnerProcess, StartOwner, forked_owners
from trainer_client.transport.channels import UnaryRequests

MODELS = ("--import", "tests.integration.restarting")


@pytest.fixture
async def start(forking: Forking) -> AsyncIterator[StartOwner]:
    async with forked_owners(forking) as start:
        yield start


@pytest.fixture
async def keeper(start: StartOwner) -> OwnerProcess:
    """The owner with the directory."""
    return await start("--name", "ps0", "--directory", "self", *MODELS)


async def member(start: StartOwner, keeper: OwnerProcess, folder: Path | None) -> OwnerProcess:
    """An owner called ps1, which lies at another port with each call."""
    data = () if folder is None else ("--data-dir", str(folder))
    return await start("--name", "ps1", "--directory", keeper.address, *data, *MODELS)


async def members(keeper: OwnerProcess) -> dict[str, tuple[str, int]]:
    """What the directory tells: addresses and numbers, by name."""
    unary = UnaryRequests()
    reply = await unary.ask(keeper.address, "Members", MembersRequest(), 30.0)
    await unary.close()
    return {each.name: (each.address, each.id) for each in reply.members}


async def killed(owner: OwnerProcess) -> None:
    owner.process.kill()
    await owner.process.wait()


async def test_a_killed_owner_enters_again_at_another_address(
    start: StartOwner, keeper: OwnerProcess, tmp_path: Path
) -> None:
    for move in range(2):
        owner = await member(start, keeper, tmp_path / "data")
        assert await members(keeper) == {"ps0": (keeper.address, 0), "ps1": (owner.address, 1)}
        async with tc.connect("ps1", directory=keeper.address) as ps:
            counter = await ps.create(TALLY, 0, name="counter") if not move else await ps.attach("counter")
            assert await counter.add(1) == move + 1
            await killed(owner)


async def test_one_that_does_not_continue_its_state_is_refused(
    start: StartOwner, keeper: OwnerProcess, tmp_path: Path
) -> None:
    owner = await member(start, keeper, tmp_path / "data")
    await killed(owner)
    for folder in (None, tmp_path / "other"):
        refused = await member(start, keeper, folder)
        _, said = await refused.ended()
        assert f"the name 'ps1' is not unique: the member at {owner.address} has it" in said[-1]
        assert refused.process.returncode == 2
    assert (await members(keeper))["ps1"] == (owner.address, 1)


async def test_one_that_was_stopped_meanwhile_serves_no_more(
    start: StartOwner, keeper: OwnerProcess, tmp_path: Path
) -> None:
    old = await member(start, keeper, tmp_path / "data")
    async with tc.connect(old.address) as ps:
        counter = await ps.create(TALLY, 0, name="counter")
        await counter.add(1)
        os.kill(old.process.pid, signal.SIGSTOP)
        # As when another machine has the directory, and no lock.
        shutil.copytree(tmp_path / "data", tmp_path / "copy")
        new = await member(start, keeper, tmp_path / "copy")
        os.kill(old.process.pid, signal.SIGCONT)
        why = f"a later start of the state of 'ps1' has taken its place, at {new.address}"
        with pytest.raises(tc.errors.ReplacedError, match=why):
            while True:
                await counter.add(0)
                await asyncio.sleep(0.01)
    _, said = await old.ended()
    assert old.process.returncode == 2 and why in said[-1]
    assert (await members(keeper))["ps1"] == (new.address, 1)
    async with tc.connect(new.address) as ps:
        assert await (await ps.attach("counter")).add(0) == 1
