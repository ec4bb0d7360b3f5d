"""Tests of communicators whose members are killed, whose streams break, and whose owner starts again."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

import trainer_client as tc
from ps_wire.limits import Limits
from tests.forking.process import Forked, Forking
from tests.integration.breaking import FAULTS, no_fault, same_wherever_it_breaks
from tests.integration.restarting import Owner
from tests.integration.support import in_memory
from trainer_client.transport.faulty import Direction, Fault, FaultyConnector, Plan


async def job(plan: Plan) -> list[Any]:
    """What two members get, one of whose streams breaks."""
    async with in_memory() as owner, AsyncExitStack() as stack:
        lines = FaultyConnector(owner.connector(), plan), owner.connector()
        clients = [await stack.enter_async_context(tc.connect(each)) for each in lines]
        team = await asyncio.gather(*(each.communicator("team", 2, rank=rank) for rank, each in enumerate(clients)))
        found: list[Any] = []
        for step in range(2):
            sums = await asyncio.gather(*(each.all_reduce(10**step) for each in team))
            values = await asyncio.gather(*(each.all_gather(torch.tensor([step, each.rank])) for each in team))
            found.append((sums, [[value.tolist() for value in each] for each in values]))
            found.append(await asyncio.gather(*(each.gather(step + each.rank, to=step % 2) for each in team)))
        await asyncio.gather(*(each.leave() for each in team))
        assert not owner.engine.communicators._present
        return found


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_call_counts_once_wherever_the_stream_breaks(fault: Fault, direction: Direction) -> None:
    expected = await job(no_fault)
    assert [each[0] for each in expected[::2]] == [[2, 2], [20, 20]]
    await same_wherever_it_breaks(job, fault, direction)


class Member:
    """A member in a process of its own."""

    def __init__(self, process: Forked) -> None:
        self.process = process

    def tell(self, order: str) -> None:
        self.process.stdin.write(f"{order}\n")
        self.process.stdin.flush()

    def hear(self) -> str:
        return self.process.stdout.readline().strip()


@pytest.mark.parametrize("transport", ["grpc", "direct", "shared_memory"])
def test_a_killed_member_is_named_long_before_its_lease_ends(
    forking: Forking, owner_process_address: str, transport: str
) -> None:
    with ExitStack() as stack:
        watch = stack.enter_context(tc.connect(owner_process_address))
        members = []
        for rank in range(3):
            program = ("tests.integration.communicator_member", owner_process_address, transport, str(rank), "3")
            members.append(Member(stack.enter_context(forking.start(*program))))
        assert [each.hear() for each in members] == [f"joined {rank}" for rank in range(3)]
        for each in members:
            each.tell("hello")
        assert [each.hear() for each in members] == [str(["hello"] * 3)] * 3
        members[0].tell("one")
        while not watch.status().communicators[0].open:
            pass
        members[2].process.kill()
        began = time.monotonic()
        heard = members[0].hear()
        assert time.monotonic() - began < Limits().lease_seconds / 2, heard
        assert heard.startswith("UnavailableError") and "rank 2 (trainer" in heard and "is lost" in heard
        # One that calls later hears of it, too.
        members[1].tell("two")
        assert "rank 2 (trainer" in members[1].hear()
        for each in members[:2]:
            each.tell("end")


async def test_members_of_an_owner_that_starts_again_make_the_communicator_again(tmp_path: Path) -> None:
    async with Owner(tmp_path / "data") as owner, tc.connect(owner.address) as one, tc.connect(owner.address) as two:
        team = await asyncio.gather(one.communicator("team", 2), two.communicator("team", 2))
        waiting = asyncio.create_task(_error(team[0].barrier()))
        await one.status()
        await owner.restart()
        assert isinstance(await waiting, tc.errors.UnavailableError)
        assert isinstance(await _error(team[1].barrier()), tc.errors.UnavailableError)
        team = await asyncio.gather(one.communicator("team", 2), two.communicator("team", 2))
        assert await asyncio.gather(*(each.all_reduce(1) for each in team)) == [2, 2]


async def _error(pending: Any) -> Any:
    try:
        return await pending
    except tc.PsError as error:
        return error
