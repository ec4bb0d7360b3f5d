"""The connection inside a process: packets cross as bytes; what every connection promises is held in `conformance`."""

from __future__ import annotations

import asyncio

import pytest

from ps_wire.connections.connection import ConnectionBroken
from ps_wire.connections.frames import Packet
from ps_wire.connections.in_process import memory_pair
from ps_wire.v1.frames_pb2 import Frame, Part


async def test_nothing_mutable_is_shared_between_the_two_ends() -> None:
    ours, theirs = memory_pair()
    payload = bytearray(b"before")
    packet = Packet(Frame(number=1, part=Part()), (memoryview(payload),))
    await ours.send(packet)
    payload[:] = b"after!"
    packet.frame.number = 2
    arrived = await theirs.receive()
    assert arrived is not None
    assert arrived.frame.number == 1
    assert b"".join(arrived.payload) == b"before"
    assert all(view.readonly for view in arrived.payload)


async def test_sending_gives_others_a_turn() -> None:
    ours, theirs = memory_pair()
    receiver = asyncio.create_task(theirs.receive())
    for number in range(1, 4):
        await ours.send(Packet(Frame(number=number)))
    assert receiver.done()
    await receiver


async def test_a_cut_loses_messages_in_transit() -> None:
    ours, theirs = memory_pair()
    await ours.send(Packet(Frame(number=1)))
    ours.cut()
    for end in (ours, theirs):
        with pytest.raises(ConnectionBroken, match="cut"):
            await end.receive()
        with pytest.raises(ConnectionBroken):
            await end.send(Packet(Frame(number=2)))


async def test_a_cut_wakes_both_ends_however_many_wait() -> None:
    ours, theirs = memory_pair()
    waiting = [asyncio.create_task(end.receive()) for end in (ours, ours, theirs, theirs)]
    await asyncio.sleep(0)
    theirs.cut()
    for outcome in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(outcome, ConnectionBroken)


async def test_a_cut_after_a_close_is_still_a_cut() -> None:
    ours, theirs = memory_pair()
    await ours.close()
    ours.cut()
    with pytest.raises(ConnectionBroken):
        await theirs.receive()
