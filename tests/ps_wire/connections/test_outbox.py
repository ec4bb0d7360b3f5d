"""Tests that messages are sent in bounded parts, and that a small one never waits for a large one."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ps_wire.connections.connection import ConnectionBroken
from ps_wire.connections.frames import Packet
from ps_wire.connections.in_process import MemoryConnection, memory_pair
from ps_wire.connections.outbox import Outbox, packets
from ps_wire.limits import MIB, PART_BYTES
from ps_wire.v1.frames_pb2 import Cancel, Frame

sizes = st.one_of(st.integers(0, 99), st.sampled_from([PART_BYTES - 64, PART_BYTES, PART_BYTES + 1, 2 * PART_BYTES]))


@asynccontextmanager
async def draining(outbox: Outbox) -> AsyncIterator[MemoryConnection]:
    """Has the outbox written to a connection, and gives its other end."""
    ours, theirs = memory_pair()
    writer = asyncio.create_task(outbox.drain(ours))
    try:
        yield theirs
    finally:
        writer.cancel()
        with suppress(asyncio.CancelledError):
            await writer


async def received(connection: MemoryConnection, count: int) -> list[Packet]:
    found = []
    for _ in range(count):
        packet = await connection.receive()
        assert packet is not None
        found.append(packet)
    return found


def put(outbox: Outbox, number: int, chunks: Sequence[bytes] = ()) -> None:
    outbox.put(Frame(number=number, cancel=Cancel()), [*map(memoryview, chunks)], sum(map(len, chunks)))


@given(st.lists(sizes, max_size=6))
def test_parts_are_full_and_hold_the_chunks_in_order(lengths: list[int]) -> None:
    chunks = [bytes([index]) * length for index, length in enumerate(lengths)]
    sent = list(packets(Frame(number=9, cancel=Cancel()), [*map(memoryview, chunks)]))
    assert [packet.nbytes for packet in sent[:-1]] == [PART_BYTES] * (len(sent) - 1)
    assert len(sent) == max(1, -(-sum(lengths) // PART_BYTES))
    assert b"".join(piece for packet in sent for piece in packet.payload) == b"".join(chunks)
    assert [packet.frame.WhichOneof("body") for packet in sent] == ["cancel"] + ["part"] * (len(sent) - 1)
    assert [packet.frame.part.offset for packet in sent] == [index * PART_BYTES for index in range(len(sent))]
    assert {packet.frame.number for packet in sent} == {9}


def test_cutting_into_parts_copies_nothing() -> None:
    chunk = bytearray(3 * PART_BYTES)
    for packet in packets(Frame(number=1), [memoryview(chunk)]):
        assert all(piece.obj is chunk for piece in packet.payload)


async def test_a_part_is_a_mebibyte() -> None:
    assert PART_BYTES == MIB
    outbox = Outbox()
    put(outbox, 1, [bytes(64 * MIB)])
    async with draining(outbox) as far:
        assert [packet.nbytes for packet in await received(far, 64)] == [MIB] * 64


async def test_the_first_frame_announces_the_whole_payload() -> None:
    outbox = Outbox()
    put(outbox, 1, [bytes(PART_BYTES), bytes(10)])
    put(outbox, 2)
    async with draining(outbox) as far:
        first, second, third = await received(far, 3)
        assert (first.frame.number, first.frame.payload_bytes) == (1, PART_BYTES + 10)
        assert (second.frame.number, second.frame.payload_bytes) == (2, 0)
        assert (third.frame.number, third.frame.payload_bytes, third.nbytes) == (1, 0, 10)


async def test_small_messages_queued_behind_a_large_one_overtake_it() -> None:
    outbox = Outbox()
    put(outbox, 1, [bytes(10 * PART_BYTES)])
    put(outbox, 2, [b"small"])
    put(outbox, 3)
    async with draining(outbox) as far:
        order = [packet.frame.number for packet in await received(far, 12)]
        assert order == [1, 2, 3] + [1] * 9


async def test_a_message_put_in_while_a_large_one_is_on_its_way_overtakes_it() -> None:
    outbox = Outbox()
    put(outbox, 1, [bytes(50 * PART_BYTES)])
    async with draining(outbox) as far:
        await received(far, 5)
        put(outbox, 2, [b"small"])
        order = [packet.frame.number for packet in await received(far, 46)]
        assert order.index(2) < 5
        assert order.count(1) == 45


async def test_large_messages_take_turns() -> None:
    outbox = Outbox()
    for number in (1, 2, 3):
        put(outbox, number, [bytes(3 * PART_BYTES)])
    async with draining(outbox) as far:
        assert [packet.frame.number for packet in await received(far, 9)] == [1, 2, 3] * 3


async def test_small_messages_keep_their_order() -> None:
    outbox = Outbox()
    async with draining(outbox) as far:
        for number in range(1, 101):
            put(outbox, number, [b"x"] * (number % 3))
        assert [packet.frame.number for packet in await received(far, 100)] == list(range(1, 101))


async def test_later_messages_are_written_too() -> None:
    outbox = Outbox()
    async with draining(outbox) as far:
        for number in range(1, 4):
            await outbox.flushed()
            put(outbox, number)
            (packet,) = await received(far, 1)
            assert packet.frame.number == number


async def test_flushed_waits_for_the_last_part() -> None:
    outbox = Outbox()
    await outbox.flushed()
    put(outbox, 1, [bytes(20 * PART_BYTES)])
    waiting = asyncio.create_task(outbox.flushed())
    ours, theirs = memory_pair()
    writer = asyncio.create_task(outbox.drain(ours))
    assert not waiting.done()
    await waiting
    writer.cancel()
    await asyncio.wait([writer])
    await ours.close()
    sizes = []
    while (packet := await theirs.receive()) is not None:
        sizes.append(packet.nbytes)
    assert sizes == [PART_BYTES] * 20


async def test_a_broken_connection_is_reported_and_ends_waits_for_space() -> None:
    outbox = Outbox()
    ours, theirs = memory_pair()
    put(outbox, 1)
    writer = asyncio.create_task(outbox.drain(ours))
    await received(theirs, 1)
    theirs.cut()
    put(outbox, 2)
    waiting = asyncio.create_task(outbox.flushed())
    with pytest.raises(ConnectionBroken):
        await writer
    await waiting
    put(outbox, 3)
    await outbox.flushed()


async def test_an_idle_connection_holds_no_memory_of_what_it_has_sent() -> None:
    near, far = memory_pair()
    outbox, memory = Outbox(), np.zeros(2 * PART_BYTES, np.uint8)
    held = weakref.ref(memory)
    drain = asyncio.create_task(outbox.drain(near))
    outbox.put(Frame(number=1), (memory.data,), memory.nbytes)
    del memory
    for _ in range(2):
        await far.receive()
    await outbox.flushed()
    assert held() is None
    drain.cancel()
