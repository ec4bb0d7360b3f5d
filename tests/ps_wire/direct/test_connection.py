"""Tests of what a direct connection adds to other connections over sockets: its close."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from ps_wire import direct
from ps_wire.connections.connection import ConnectionBroken
from ps_wire.connections.frames import Packet
from ps_wire.direct import DirectConnection
from ps_wire.limits import MIB
from ps_wire.v1.frames_pb2 import Frame


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[DirectConnection, DirectConnection]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    ends = DirectConnection(near), DirectConnection(far)
    yield ends
    for end in ends:
        end.cut()


async def test_what_was_sent_arrives_although_this_side_has_not_read_everything() -> None:
    async with connected() as (near, far):
        # It is not read: a socket that is closed then resets the connection.
        near._stream.pause()
        await far.send(Packet(Frame(number=9), (memoryview(bytes(100_000)),)))
        await near.send(Packet(Frame(number=1), (memoryview(bytes(8 * MIB)),)))
        closing = asyncio.create_task(near.close())
        packet = await far.receive()
        assert packet is not None and packet.frame.number == 1
        assert await far.receive() is None
        await far.close()
        await closing


async def test_closing_does_not_wait_for_a_side_that_does_not_close(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "_LINGER", 0.05)
    async with connected() as (near, far):
        far._stream.pause()
        await near.send(Packet(Frame(number=1)))
        async with asyncio.timeout(50):
            await near.close()
            await near.closed()
        with pytest.raises(ConnectionBroken):
            await near.send(Packet(Frame(number=2)))


async def test_a_cut_is_noticed_by_both_ends() -> None:
    async with connected() as (near, far):
        near.cut("it was enough")
        with pytest.raises(ConnectionBroken, match="it was enough"):
            await near.receive()
        with pytest.raises(ConnectionBroken, match="the direct connection broke"):
            await far.receive()
        await near.closed()
