"""Groups whose directory several owners keep: any of them may die, move or be cut off while trainers train."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import trainer_client as tc
from tests.forking.process import Forking
from tests.integration.restarting import TALLY
from tests.owner_processes import OwnerProcess, StartOwner, forked_owners
from tests.ports import ReservedPort

MODELS = ("--import", "tests.integration.restarting")


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


async def test_one_joins_and_is_found_after_a_keeper_was_killed(keepers: Keepers) -> None:
    async with tc.connect(directory=keepers.addresses) as ps:
        assert await ps.find_owners(3) == ["ps0", "ps1", "ps2"]
        await keepers.kill("ps0")
        new = await keepers.start("ps3")
        assert await ps.find_owners(4) == ["ps0", "ps1", "ps2", "ps3"]
        assert await (await ps.create(TALLY, 0, owner="ps3")).add(1) == 1
    async with tc.connect("ps3", directory=keepers.addresses[1:]) as ps:
        assert ps.sessions["ps3"].address == new.address
