"""Messages that are put together are written together."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from ps_wire.connections.outbox import Outbox
from ps_wire.limits import MIB
from ps_wire.shared_memory.connection import SharedMemoryConnection
from ps_wire.v1.frames_pb2 import Cancel, Frame
from tests.socket_writes import noted_writes


@asynccontextmanager
async def outbox_and_reader() -> AsyncIterator[tuple[Outbox, SharedMemoryConnection]]:
    """An outbox over one end of a connection, and the other end."""
    here, there = (
        SharedMemoryConnection(each, 4 * MIB, 64 * MIB)
        for each in socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    )
    outbox = Outbox()
    writer = asyncio.create_task(outbox.drain(here))
    await asyncio.sleep(0)
    try:
        yield outbox, there
    finally:
        writer.cancel()
        await asyncio.wait([writer])
        await here.close()
        await there.close()


def put(outbox: Outbox, number: int, nbytes: int = 0) -> None:
    outbox.put(Frame(number=number, cancel=Cancel()), (memoryview(bytes(nbytes)),) if nbytes else (), nbytes)


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    return noted_writes(monkeypatch)


async def test_messages_of_a_block_are_written_at_its_end(writes: list[int]) -> None:
    async with outbox_and_reader() as (outbox, there):
        with outbox.together():
            put(outbox, 1)
            put(outbox, 2, 20_000)
            put(outbox, 3)
            assert not writes
        assert len(writes) == 1
        for number in (1, 2, 3):
            packet = await there.receive()
            assert packet is not None
            assert packet.frame.number == number


async def test_a_block_that_raises_writes_what_it_has_put(writes: list[int]) -> None:
    async with outbox_and_reader() as (outbox, there):
        with pytest.raises(KeyError), outbox.together():
            put(outbox, 1)
            raise KeyError
        packet = await there.receive()
        assert packet is not None
        assert packet.frame.number == 1


async def test_only_the_outermost_block_counts(writes: list[int]) -> None:
    async with outbox_and_reader() as (outbox, _):
        with outbox.together():
            with outbox.together():
                put(outbox, 1)
            put(outbox, 2)
            assert not writes
        assert len(writes) == 1
        put(outbox, 3)
        assert len(writes) == 2


async def test_a_new_segment_takes_the_earlier_messages_with_it(writes: list[int]) -> None:
    async with outbox_and_reader() as (outbox, there):
        with outbox.together():
            put(outbox, 1)
            put(outbox, 2, 100_000)
            assert len(writes) == 1
            put(outbox, 3)
        assert len(writes) == 2
        received = [await there.receive() for _ in range(3)]
        assert [packet.frame.number for packet in received if packet is not None] == [1, 2, 3]


async def test_the_bytes_that_are_kept_are_bounded(writes: list[int]) -> None:
    async with outbox_and_reader() as (outbox, there):
        with outbox.together():
            for number in range(20):
                put(outbox, number, 30_000)
            assert writes
        received = [await there.receive() for _ in range(20)]
        assert [packet.frame.number for packet in received if packet is not None] == list(range(20))
