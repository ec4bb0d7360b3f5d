"""What an owner's memory is bounded by, measured on a real process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing

import pytest
import torch

import trainer_client as tc
from ps_wire.limits import MIB
from ps_wire.status import OwnerStatus
from tests.forking.process import Forking
from tests.integration.test_idle_memory import shared
from tests.owner_processes import StartOwner, forked_owners
from tests.transports import TRANSPORTS

# Eight MiB.
SHAPE = (32 * 1024, 64)


async def passes(ps: tc.Client, net: tc.RemoteModule, count: int) -> int:
    """Resident bytes of the owner after so many forwards and backwards in the pass that is open."""
    x = torch.randn(SHAPE)
    ctx = tc.current_context()
    assert ctx is not None
    for _ in range(count):
        await ctx.backward((await net(x)).sum())
    return (await ps.status()).resident_bytes


@pytest.fixture
async def mapping_owner(forking: Forking) -> AsyncIterator[str]:
    """The address of an owner from which what is freed goes to the system at once: only what is held is measured."""
    command = ("tests.integration.prepared_owner", "mappings", "--listen", "127.0.0.1:0")
    async with aclosing(await forking.begin(*command)) as process:
        yield (await process.stdout.readline()).decode().split()[-1]


async def test_many_backwards_in_one_pass_hold_the_memory_of_one(mapping_owner: str) -> None:
    async with tc.connect(mapping_owner) as ps:
        net = await ps.module(torch.nn.Linear, 64, 64)
        # Waits for what an owner imports for its first optimizer beside its start: some 100 MiB.
        await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1)
        async with ps.context():
            few = await passes(ps, net, 3)
            many = await passes(ps, net, 12)
    # Their outputs alone would be 96 MiB.
    assert many - few < 48 * MIB


async def burst(address: str, transport: str) -> tc.Client:
    """Twenty requests and answers of 8 MiB, five at a time, and six passes; gives the client, which stays open."""
    ps = await tc.connect(address, **TRANSPORTS[transport])
    same = await ps.module(torch.nn.Identity)
    x = torch.ones(SHAPE)
    for _ in range(4):
        await asyncio.gather(*(same(x) for _ in range(5)))
    net = await ps.module(torch.nn.Linear, 64, 64)
    for _ in range(6):
        async with ps.context() as ctx:
            await ctx.backward((await net(x)).sum())
    return ps


async def status_when(ps: tc.Client, so: Callable[[OwnerStatus], bool]) -> OwnerStatus:
    """The first status in which something is so; it is asked for a few times a second."""
    try:
        async with asyncio.timeout(120):
            while not so(status := await ps.status()):  # noqa: ASYNC110
                await asyncio.sleep(0.2)
    except TimeoutError:
        pytest.fail(f"that is not so within two minutes: {status}, and {shared()} bytes are shared here")
    return status


@pytest.fixture
async def start(forking: Forking) -> AsyncIterator[StartOwner]:
    async with forked_owners(forking) as start:
        yield start


async def test_an_idle_owner_gives_back_the_memory_of_a_burst(start: StartOwner) -> None:
    owner = await start("--name", "ps0")
    async with tc.connect(owner.address) as ps:
        net = await ps.module(torch.nn.Linear, 1, 1)
        await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1)
        before = (await ps.status()).resident_bytes
        left = shared()  # by other tests in this process
        clients = [await burst(owner.address, transport) for transport in TRANSPORTS]
        # Five seconds without large messages are enough, however long this machine takes for them. Some 100 MiB of
        # buffers and of malloc are left when the segments are given back.
        now = await status_when(
            ps, lambda now: now.resident_bytes - before < 64 * MIB and now.shared_bytes == 0 and shared() <= left
        )
        assert now.context_bytes == now.request_bytes == now.answer_bytes == 0
        for client in clients:
            await client.close()
