"""Every workload holds on owners that nobody kills, and notices what it is for."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import trainer_client as tc
from tests.crash.events import Action, Teller, Violation
from tests.crash.processes import PATIENCE, OwnerProcess, told
from tests.crash.workloads import WORKLOADS
from tests.crash.workloads.workload import Horizon
from tests.forking.process import Forking

STEPS = 6


@contextmanager
def started(forking: Forking, folder: Path) -> Iterator[list[OwnerProcess]]:
    durability = "interval:0.05"
    owners = [OwnerProcess(forking, folder, each, durability) for each in ("ps0", "ps1")]
    with ExitStack() as stack:
        for each in owners:
            stack.callback(each.close)
            each.start()
        yield owners


@pytest.fixture
def owners(forking: Forking, tmp_path: Path) -> Iterator[list[OwnerProcess]]:
    with started(forking, tmp_path) as owners:
        yield owners


@pytest.fixture(scope="module")
def addresses(forking: Forking, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Of owners of all workloads, as where these are killed."""
    with started(forking, tmp_path_factory.mktemp("owners")) as owners:
        yield [each.address for each in owners]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def work(name: str, slot: int, addresses: list[str], pipe: int, steps: int) -> None:
    workload, choose, tell = WORKLOADS[name](), random.Random(slot), Teller(pipe)
    async with tc.connect(*addresses) as ps:
        await workload.prepare(ps, slot)
        for _ in range(steps):
            await workload.step(ps, choose, tell)


async def done(name: str, addresses: list[str], folder: Path, trainers: int = 3, steps: int = STEPS) -> list[Action]:
    """The actions of trainers."""
    actions: list[Action] = []
    files = [(folder / f"told{slot}").open("wb") for slot in range(trainers)]
    await asyncio.gather(*(work(name, slot, addresses, file.fileno(), steps) for slot, file in enumerate(files)))
    for slot, file in enumerate(files):
        file.close()
        own: dict[int, Action] = {}
        for line in lines(Path(file.name)):
            told(own, slot, line)
        actions += own.values()
    return actions


def with_one_lost(name: str, actions: list[Action]) -> list[Action]:
    """As if the owner had one action less, or one more."""
    if name == "names":
        what = {"kind": "make", "name": "thing-0-1-5", "owner": "ps0", "seed": 5}
        return [*actions, Action(0, name, what, {"was_made": True})]
    last = max(at for at, each in enumerate(actions) if each.what.get("kind", "pass") == "pass")
    return [each for at, each in enumerate(actions) if at != last]


@pytest.mark.parametrize("name", WORKLOADS)
async def test_a_workload_holds_and_an_action_that_is_lost_is_noticed(
    name: str, addresses: list[str], tmp_path: Path
) -> None:
    torch.set_num_threads(1)
    workload, other = WORKLOADS[name](), WORKLOADS[name]()
    async with tc.connect(*addresses) as ps:
        await workload.begin(ps)
        await other.begin(ps)
        actions = await done(name, addresses, tmp_path)
        assert len(actions) > STEPS and all(each.is_done for each in actions)
        await workload.check(ps, actions, Horizon())
        await workload.check(ps, [], Horizon())
        with pytest.raises(Violation):
            await other.check(ps, with_one_lost(name, actions), Horizon())


async def test_a_round_that_a_drain_ends_has_fewer_gradients(owners: list[OwnerProcess], tmp_path: Path) -> None:
    torch.set_num_threads(1)
    workload, other = WORKLOADS["quorum"](), WORKLOADS["quorum"]()
    addresses, actions = [each.address for each in owners], list[Action]()
    async with tc.connect(*addresses) as ps:
        await workload.begin(ps)
        await other.begin(ps)
        for _ in range(2):
            actions += await done("quorum", addresses, tmp_path, trainers=1, steps=3)
            owners[1].terminate()
            assert await asyncio.to_thread(owners[1].ended, PATIENCE) and owners[1].code == 0
            await asyncio.to_thread(owners[1].start)
            workload.drained("ps1")
        await workload.check(ps, actions, Horizon())
        with pytest.raises(Violation, match="applied twice"):
            await other.check(ps, actions, Horizon())
