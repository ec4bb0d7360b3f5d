"""Tests that shared memory costs no descriptors, and that an owner without descriptors refuses only new trainers."""

from __future__ import annotations

import asyncio
import os
import re
import resource
from contextlib import AsyncExitStack, aclosing

import pytest
import torch

import trainer_client as tc
from ps_wire.shared_memory import descriptors
from ps_wire.shared_memory.hosts import host_id
from tests.conftest import OwnerProcess
from tests.forking.process import Forking
from tests.integration.prepared_owner import DESCRIPTORS
from tests.integration.support import COUNTER

pytestmark = pytest.mark.skipif(not host_id(), reason="descriptors are counted on Linux")


def opened(pid: int | str = "self") -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def limit(owner: OwnerProcess, most: int) -> None:
    """Sets the soft limit, which can be raised again."""
    hard = resource.prlimit(owner.process.pid, resource.RLIMIT_NOFILE)[1]
    resource.prlimit(owner.process.pid, resource.RLIMIT_NOFILE, (most, hard))


async def test_four_trainers_with_600_calls_in_flight_leave_room_for_others(owner_process: OwnerProcess) -> None:
    limit(owner_process, 1024)
    value = torch.ones(12_000)  # 48 kB: over shared memory
    before, before_here = opened(owner_process.process.pid), opened()
    async with AsyncExitStack() as stack:
        trainers = [await stack.enter_async_context(tc.connect(owner_process.address)) for _ in range(4)]
        counters = [await ps.create(COUNTER) for ps in trainers]
        for _ in range(2):
            answers = await asyncio.gather(*(counter.echo(value) for counter in counters for _ in range(150)))
            assert all(torch.equal(answer, value) for answer in answers)
        assert (await trainers[0].status()).shared_memory_connections == 4
        # What a segment costs is memory.
        assert opened(owner_process.process.pid) - before < 40 and opened() - before_here < 40
        async with tc.connect(owner_process.address, connect_timeout=10) as another:
            assert (await another.status()).shared_memory_connections == 5


async def test_an_owner_without_descriptors_refuses_new_trainers_and_says_why(owner_process: OwnerProcess) -> None:
    limit(owner_process, opened(owner_process.process.pid) + descriptors.RESERVE + 12)
    async with AsyncExitStack() as stack:
        trainers: list[tc.Client] = []
        said = ""
        for _ in range(40):
            try:
                connecting = tc.connect(owner_process.address, connect_timeout=1.0)
                trainers.append(await stack.enter_async_context(connecting))
            except tc.errors.UnavailableError as error:
                said = str(error)
                # A busy machine may need longer for one that is not refused.
                if "takes no new trainers" in said:
                    break
        assert re.search(r"takes no new trainers: \d+ of its \d+ file descriptors", said)
        assert len(trainers) >= 3
        for ps in trainers:
            counter = await ps.create(COUNTER)
            assert torch.equal(await counter.echo(torch.ones(100_000)), torch.ones(100_000))
        limit(owner_process, opened(owner_process.process.pid) + descriptors.RESERVE + 12)
        async with tc.connect(owner_process.address, connect_timeout=10) as ps:
            assert await (await ps.create(COUNTER)).add() == 1


async def test_serve_may_open_as_many_as_the_system_allows(forking: Forking) -> None:
    command = ("tests.integration.prepared_owner", "descriptors", "--listen", "127.0.0.1:0")
    async with aclosing(await forking.begin(*command)) as process:
        assert b"is serving on" in await process.stdout.readline()
        soft, hard = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
        assert soft == hard != DESCRIPTORS


def test_a_shortage_is_told_before_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert descriptors.shortage() == ""
    used = opened()
    monkeypatch.setattr(resource, "getrlimit", lambda _: (used + descriptors.RESERVE - 1, used + 100))
    assert "file descriptors are in use" in descriptors.shortage()
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert descriptors.shortage() == ""
