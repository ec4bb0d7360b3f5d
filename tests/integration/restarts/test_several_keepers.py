"""Groups whose directory several owners keep: any of them may die, move or be cut off while trainers train."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import trainer_client as tc
from ps_service.durability.place import Place
from tests.autograd_models import PATIENCE
from tests.forking.process import Forking
from tests.integration.restarting import TALLY
from tests.integration.restarts.test_followed_owners import Trainer, trained_here
from tests.integration.restarts.test_moved_owners import members
from tests.integration.support import bits
from tests.owner_processes import OwnerProcess, StartOwner, forked_owners
from tests.ports import ReservedPort
from tests.waiting import pauses, until

MODELS = [
    flag
    for module in ("tests.integration.restarting", "tests.no_locks", "tests.quick_leases")
    for flag in ("--import", module)
]
"""Data directories have no locks, as on many network file systems."""


class Keepers:
    """Three owners that keep the directory of their group, each with a data directory."""

    def __init__(self, start: StartOwner, folder: Path, addresses: list[str]) -> None:
        self._start = start
        self._folder = folder
        self.addresses = addresses
        self.owners: dict[str, OwnerProcess] = {}

    async def start(self, name: str, *flags: str) -> OwnerProcess:
        where = ("--directory", ",".join(self.addresses), "--data-dir", str(self._folder / name))
        self.owners[name] = await self._start("--name", name, *where, *MODELS, *flags)
        return self.owners[name]

    async def begin(self) -> None:
        await asyncio.gather(*(self.start(f"ps{i}", "--listen", each) for i, each in enumerate(self.addresses)))

    async def kill(self, name: str) -> None:
        self.owners[name].process.kill()
        await self.owners[name].process.wait()


@pytest.fixture
async def keepers(forking: Forking, tmp_path: Path) -> AsyncIterator[Keepers]:
    ports = [ReservedPort() for _ in range(3)]
    async with forked_owners(forking) as start:
        keepers = Keepers(start, tmp_path, [each.address for each in ports])
        await keepers.begin()
        yield keepers
    for each in ports:
        each.close()


async def test_one_joins_and_is_found_after_a_keeper_was_killed(keepers: Keepers, tmp_path: Path) -> None:
    async with tc.connect(directory=keepers.addresses) as ps:
        assert await ps.find_owners(3) == ["ps0", "ps1", "ps2"]
        await keepers.kill("ps0")
        new = await keepers.start("ps3")
        assert await ps.find_owners(4) == ["ps0", "ps1", "ps2", "ps3"]
        assert await (await ps.create(TALLY, 0, owner="ps3")).add(1) == 1
    async with tc.connect("ps3", directory=keepers.addresses[1:]) as ps:
        assert ps.sessions["ps3"].address == new.address
    other = await keepers.start("ps3", "--data-dir", str(tmp_path / "other"))
    _, said = await other.ended()
    assert f"the name 'ps3' is not unique: the member at {new.address} has it" in said[-1]
    assert other.process.returncode == 2
    # It gives its name back, also if a keeper does not answer.
    os.kill(new.process.pid, signal.SIGTERM)
    _, said = await new.ended()
    assert new.process.returncode == 0 and not any("hosted code" in each for each in said)
    async with asyncio.timeout(50):
        for pause in pauses(0.05):  # an owner hears of it with its next claim
            if "ps3" not in await members(keepers.owners["ps1"]):
                break
            await asyncio.sleep(pause)


async def test_keepers_move_and_die_while_trainers_train(keepers: Keepers) -> None:
    """The nets are on two of the keepers; each moves once, and then the third is gone for good."""
    async with (
        tc.connect("ps0", "ps1", directory=keepers.addresses) as one,
        tc.connect("ps1", "ps0", directory=keepers.addresses[::-1]) as other,
    ):
        trainers = [await Trainer.begun(each) for each in (one, other)]
        done = itertools.count()
        stop = asyncio.Event()

        async def train() -> list[int]:
            made = []
            while not stop.is_set():
                made.append(next(done))
                await trainers[made[-1] % 2].step(made[-1])
            return made

        training = asyncio.create_task(train())
        for name in ("ps0", "ps1"):
            await keepers.kill(name)
            await keepers.start(name)
        # Nobody would be left to tell a trainer that has not found them yet.
        await until(
            lambda: all(
                each.ps.sessions[name].address == keepers.owners[name].address
                for each in trainers
                for name in ("ps0", "ps1")
            )
        )
        await keepers.kill("ps2")
        # The two that have moved are a majority. A new one has to be told where one of them is.
        moved = f"{keepers.addresses[0]}={keepers.owners['ps0'].address}"
        new = await keepers.start("ps3", "--directory", ",".join([moved, *keepers.addresses[1:]]))
        async with tc.connect("ps0", "ps1", "ps3", directory=new.address) as late:
            assert [late.sessions[name].address for name in late.owners] == [
                keepers.owners[name].address for name in ("ps0", "ps1", "ps3")
            ]
        stop.set()
        made = await training
        for each in trainers:
            assert [bits(await net.state_dict()) for net in each.nets] == [bits(x) for x in trained_here(made)]
            assert [each.ps.sessions[name].losses for name in ("ps0", "ps1")] == [0, 0]


async def test_a_keeper_that_starts_again_and_a_trainer_find_one_that_has_moved_before(
    keepers: Keepers, tmp_path: Path
) -> None:
    """The data directory of the keeper tells where, if no other one is left that could. The trainer remembers it, while
    there is no majority, so that nobody can be asked, and where it was told to look is nobody."""
    async with tc.connect("ps0", "ps1", directory=keepers.addresses) as ps:
        trainer = await Trainer.begun(ps)
        moved = await _moved(keepers, tmp_path / "ps1")
        await trainer.step(0)
        await asyncio.gather(keepers.kill("ps1"), keepers.kill("ps2"))
        async with asyncio.timeout(PATIENCE):
            for pause in pauses(0.05):  # the one that has moved cuts off its trainers
                if ps.sessions["ps0"].state == "disconnected":
                    break
                await asyncio.sleep(pause)
        await keepers.start("ps1")
        async with tc.connect("ps0", "ps1", directory=moved.address) as late:
            assert await (await late.create(TALLY, 0, owner="ps1")).add(1) == 1
        await trainer.step(1)
        assert [bits(await net.state_dict()) for net in trainer.nets] == [bits(each) for each in trained_here(range(2))]


async def _moved(keepers: Keepers, other: Path) -> OwnerProcess:
    """The first keeper, at another address, which another one has noted in its data directory."""
    await keepers.kill("ps0")
    moved = await keepers.start("ps0")
    async with asyncio.timeout(PATIENCE):
        for pause in pauses(0.05):
            if moved.address in Place.read(other).keepers.values():
                break
            await asyncio.sleep(pause)
    return moved


async def test_a_keeper_that_was_frozen_while_another_has_its_directory_grants_nothing(keepers: Keepers) -> None:
    old = keepers.owners["ps0"]
    async with tc.connect("ps1", directory=keepers.addresses[1:]) as ps:
        tally = await ps.create(TALLY, 0)
        os.kill(old.process.pid, signal.SIGSTOP)
        moved = await keepers.start("ps0")
        os.kill(old.process.pid, signal.SIGCONT)
        _, said = await old.ended()
        assert old.process.returncode == 2
        # Its data directory tells it, or a keeper that it asks.
        assert "another owner has taken the data directory" in said[-1] or "has taken its place, at " in said[-1]
        await keepers.kill("ps2")  # the one that has moved is needed now
        began = time.monotonic()
        while time.monotonic() < began + 2.5:
            await tally.add(1)
            await asyncio.sleep(0.02)
        assert moved.process.returncode is None


async def test_a_group_that_is_killed_as_a_whole_comes_back(keepers: Keepers) -> None:
    async with tc.connect("ps0", "ps1", directory=keepers.addresses) as ps:
        trainer = await Trainer.begun(ps)
        await trainer.step(0)
        await asyncio.gather(*map(keepers.kill, keepers.owners))
        step = asyncio.ensure_future(trainer.step(1))
        await keepers.begin()
        await step
        assert [bits(await net.state_dict()) for net in trainer.nets] == [bits(each) for each in trained_here(range(2))]
        assert [ps.sessions[name].losses for name in ("ps0", "ps1")] == [0, 0]
    async with asyncio.timeout(50):
        for pause in pauses(0.05):  # an owner hears of another with its next claim
            if len(found := await members(keepers.owners["ps2"])) == 3:
                break
            await asyncio.sleep(pause)
    assert {name: number for name, (_, number) in found.items()} == {"ps0": 0, "ps1": 1, "ps2": 2}
