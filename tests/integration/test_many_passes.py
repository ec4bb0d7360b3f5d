"""Many passes and messages of many tensors at once, over shared memory and over gRPC."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest
import torch

import trainer_client as tc
from ps_service.server import Server
from ps_wire.limits import MIB, Limits
from ps_wire.shared_memory import connection
from ps_wire.shared_memory.hosts import host_id
from tests.conftest import StartOwner
from tests.integration.support import COUNTER
from tests.transports import TRANSPORTS

pytestmark = pytest.mark.skipif(not host_id(), reason="shared-memory connections need Linux")


async def one_pass(ps: tc.Client, relu: tc.RemoteModule, numbers: int) -> float:
    """A pass whose gradients have so many numbers in each direction; returns the sum of the input's."""
    x = torch.ones(numbers, requires_grad=True)
    async with ps.context() as ctx:
        await ctx.backward((await relu(x)).sum())
        gradient = ctx.gradient(x)
        assert gradient is not None
        return float(gradient.sum())


async def test_eight_passes_at_once_with_gradients_of_8_mb(ps: tc.Client) -> None:
    relu = await ps.module("torch.nn.ReLU")
    async with asyncio.timeout(60):
        sums = await asyncio.gather(*(one_pass(ps, relu, 2 * MIB) for _ in range(8)))
    assert sums == [2.0 * MIB] * 8


async def test_sixty_four_passes_at_once(ps: tc.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    # What is copied in threads when it is large is copied there when it is not.
    monkeypatch.setattr(connection, "_LONG_COPY", 64 * 1024)
    relu = await ps.module("torch.nn.ReLU")
    async with asyncio.timeout(60):
        sums = await asyncio.gather(*(one_pass(ps, relu, MIB // 16) for _ in range(64)))
    assert sums == [MIB / 16] * 64


async def test_a_pass_needs_none_of_the_program_s_threads(ps: tc.Client) -> None:
    loop, end = asyncio.get_running_loop(), threading.Event()
    blocked = [loop.run_in_executor(None, end.wait, 60) for _ in range(4 * (os.cpu_count() or 1) + 32)]
    try:
        async with asyncio.timeout(60):
            assert await one_pass(ps, await ps.module("torch.nn.ReLU"), 2 * MIB) == 2 * MIB
    finally:
        end.set()
        await asyncio.gather(*blocked)


@pytest.mark.parametrize(
    ("transport", "numbers"),
    [*(("shared_memory", numbers) for numbers in (1, 16, 700)), ("direct", 1), ("direct", 700), ("grpc", 16)],
)
async def test_thousands_of_tensors_that_fit_into_no_segment_arrive(
    start_owner: StartOwner, transport: str, numbers: int
) -> None:
    small = await start_owner("small", limits=Limits(max_segment_bytes=MIB // 4))
    async with tc.connect(small.address, **TRANSPORTS[transport]) as ps:
        counter = await ps.create(COUNTER)
        sent = [torch.full((numbers,), float(number)) for number in range(2000)]
        async with asyncio.timeout(60):
            came = await counter.echo(sent)
        assert all(torch.equal(left, right) for left, right in zip(sent, came, strict=True))
        assert (await ps.status()).shared_memory_connections == int(transport == "shared_memory")


async def test_the_state_of_hundreds_of_layers_arrives_though_it_fits_into_no_segment(start_owner: StartOwner) -> None:
    small: Server = await start_owner("small", limits=Limits(max_segment_bytes=MIB))
    async with tc.connect(small.address) as ps:
        counter = await ps.create(COUNTER)
        state = {f"layers.{number}.weight": torch.full((8192,), float(number)) for number in range(601)}
        for _ in range(2):
            async with asyncio.timeout(60):
                came = await counter.echo(state)
            assert all(torch.equal(came[name], tensor) for name, tensor in state.items())
