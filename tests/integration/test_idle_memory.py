"""Memory that is of no more use: of idle shared-memory connections, and of messages of which little is kept."""

from __future__ import annotations

import asyncio
import gc
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import torch

import trainer_client as tc
from ps_service.server import Server
from ps_wire.limits import MIB
from ps_wire.shared_memory import connection
from ps_wire.shared_memory.hosts import host_id
from tests.integration.support import COUNTER
from tests.transports import TRANSPORTS, over_each
from tests.waiting import until

pytestmark = pytest.mark.skipif(not host_id(), reason="shared-memory connections need Linux")


def shared(pid: int | str = "self") -> int:
    """Bytes of shared-memory connections' memory that a process has mapped and used."""
    total, ours = 0, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        first = line.split(maxsplit=1)[0]
        if not first.endswith(":"):
            ours = "memfd:ps-shm" in line
        elif ours and first == "Rss:":
            total += int(line.split()[1]) * 1024
    return total


async def test_segments_of_idle_trainers_go_back_to_the_system(owner: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "IDLE_SECONDS", 0.5)
    value = torch.ones(2 * MIB)  # 8 MiB
    before = shared()  # what other tests have left in this process
    async with AsyncExitStack() as stack:
        trainers = [await stack.enter_async_context(tc.connect(owner.address)) for _ in range(3)]
        counters = [await ps.create(COUNTER) for ps in trainers]
        results = await asyncio.gather(*(counter.echo(value) for counter in counters for _ in range(3)))
        assert all(torch.equal(result, value) for result in results)
        # Still held: the results of nine calls.
        assert shared() >= before + 64 * MIB
        results.clear()
        gc.collect()
        await until(lambda: shared() <= before, 0.1)
        # And then it goes on as before.
        for counter in counters:
            assert torch.equal(await counter.echo(value), value)


async def test_segments_in_use_stay(ps: tc.Client, owner: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "IDLE_SECONDS", 0.02)
    counter = await ps.create(COUNTER)
    (theirs,) = owner.servicer.shared_memory._connections.values()
    kept = await counter.echo(torch.arange(MIB))
    await until(lambda: not theirs._view.mapped, 0.01)
    # The trainer holds the answer, and nothing else is left.
    assert theirs._pool.nbytes == 8 * MIB and torch.equal(kept, torch.arange(MIB))
    del kept
    await until(lambda: not theirs._pool.nbytes, 0.01)
    assert torch.equal(await counter.echo(torch.ones(MIB)), torch.ones(MIB))


@over_each
async def test_a_small_tensor_that_is_kept_does_not_keep_its_message(owner: Server, transport: str) -> None:
    async with tc.connect(owner.address, **TRANSPORTS[transport]) as ps:
        counter = await ps.create(COUNTER)
        kept = [(await counter.echo([torch.ones(4), torch.zeros(MIB)]))[0] for _ in range(12)]
        assert all(tensor.untyped_storage().nbytes() == 16 for tensor in kept)
        assert all(torch.equal(tensor, torch.ones(4)) for tensor in kept)
        gc.collect()
        # What they came with can be used by others: of twelve messages of 4 MiB hardly one is left.
        assert (await ps.status()).shared_bytes <= 32 * MIB


async def test_many_tensors_that_are_kept_leave_segments_for_others(ps: tc.Client, owner: Server) -> None:
    counter = await ps.create(COUNTER)
    kept = [await counter.echo(torch.full((MIB // 16,), float(number))) for number in range(300)]
    (theirs,) = owner.servicer.shared_memory._connections.values()
    assert len(theirs._pool._all) <= 80
    assert [int(tensor[-1]) for tensor in kept] == list(range(300))
