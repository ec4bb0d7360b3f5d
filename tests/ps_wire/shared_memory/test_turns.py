"""One shared-memory connection's messages do not keep the event loop from all others, however many arrive at once."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from ps_wire.connections.connection import ConnectionBroken
from ps_wire.connections.frames import Packet
from ps_wire.limits import MIB
from ps_wire.shared_memory.connection import SharedMemoryConnection
from ps_wire.sockets import stream_socket
from ps_wire.sockets.connection import TURN_SECONDS
from ps_wire.v1.frames_pb2 import Frame
from tests.waiting import until


@asynccontextmanager
async def shared_memory() -> AsyncIterator[tuple[SharedMemoryConnection, SharedMemoryConnection]]:
    """The two ends of a shared-memory connection."""
    ends = [SharedMemoryConnection(each, MIB, MIB) for each in socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)]
    try:
        yield ends[0], ends[1]
    finally:
        for end in ends:
            await end.close()


def busy(seconds: float) -> None:
    """Holds the event loop."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


async def _fill(sender: SharedMemoryConnection, count: int) -> None:
    for number in range(count):
        await sender.send(Packet(Frame(number=number + 1)))


async def test_messages_that_take_long_let_those_of_other_connections_pass() -> None:
    async with shared_memory() as (one, here), shared_memory() as (other, there):
        order: list[str] = []
        done = asyncio.Event()

        def take_one(packet: Packet) -> bool:
            busy(TURN_SECONDS)
            order.append(f"one {packet.frame.number}")
            if packet.frame.number == 50:
                done.set()
            return False

        def take_other(packet: Packet) -> bool:
            order.append("other")
            return False

        await _fill(one, 50)
        await _fill(other, 1)
        serving = [asyncio.create_task(here.deliver(take_one)), asyncio.create_task(there.deliver(take_other))]
        async with asyncio.timeout(50):
            await done.wait()
        assert order.index("other") < 5
        assert [each for each in order if each != "other"] == [f"one {number + 1}" for number in range(50)]
        for task in serving:
            task.cancel()


async def test_short_messages_are_taken_in_one_go() -> None:
    async with shared_memory() as (one, here):
        turns = 0
        loop = asyncio.get_running_loop()
        done = asyncio.Event()

        def count() -> None:
            nonlocal turns
            turns += 1
            if not done.is_set():
                loop.call_soon(count)

        def take(packet: Packet) -> bool:
            if packet.frame.number == 1:
                loop.call_soon(count)
            if packet.frame.number == 50:
                done.set()
            return False

        serving = asyncio.create_task(here.deliver(take))
        await asyncio.sleep(0)
        await _fill(one, 50)
        await done.wait()
        assert turns < 10
        serving.cancel()


@pytest.mark.parametrize("how", ["closed", "cut"])
async def test_packets_before_the_end_are_still_delivered(how: str) -> None:
    async with shared_memory() as (one, here):
        taken: list[int] = []

        def take(packet: Packet) -> bool:
            busy(TURN_SECONDS)
            taken.append(packet.frame.number)
            return False

        await _fill(one, 20)
        if how == "closed":
            await one.close()
        else:
            await asyncio.sleep(0)  # what is sent in one turn goes out at its end
            one.cut()
        async with asyncio.timeout(50):
            if how == "closed":
                await here.deliver(take)
            else:
                with pytest.raises(ConnectionBroken):
                    await here.deliver(take)
        assert taken == list(range(1, 21))


async def test_a_message_may_be_the_last_one_in_the_middle_of_many() -> None:
    async with shared_memory() as (one, here):
        taken: list[int] = []

        def take(packet: Packet) -> bool:
            busy(TURN_SECONDS)
            taken.append(packet.frame.number)
            return packet.frame.number == 5

        await _fill(one, 20)
        async with asyncio.timeout(50):
            await here.deliver(take)
        assert taken == [1, 2, 3, 4, 5]


async def test_a_lost_connection_is_noticed_during_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_socket, "_LOOK_SECONDS", 0.01)
    async with shared_memory() as (there, here):
        pause: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        paused = asyncio.Event()

        def handle(packet: Packet) -> asyncio.Future[bool]:
            paused.set()
            return pause

        serving = asyncio.create_task(here.deliver(handle))
        await _fill(there, 1)
        await paused.wait()
        # What was sent after that, and is not read, does not hide it.
        await _fill(there, 100)
        await asyncio.sleep(0.05)
        assert not serving.done()
        there.cut()
        with pytest.raises(ConnectionBroken, match="the other side is gone"):
            async with asyncio.timeout(50):
                await serving
        pause.set_result(False)


@pytest.mark.parametrize("begun", [True, False], ids=["while it waits", "before it begins"])
async def test_packets_before_a_close_during_a_pause_are_delivered(
    monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    monkeypatch.setattr(stream_socket, "_LOOK_SECONDS", 0.01)
    async with shared_memory() as (there, here):
        pause: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        numbers: list[int] = []

        def handle(packet: Packet) -> bool | asyncio.Future[bool]:
            numbers.append(packet.frame.number)
            return pause if len(numbers) == 1 else packet.frame.number == 3

        serving = asyncio.create_task(here.deliver(handle)) if begun else None
        await _fill(there, 3)
        await there.close()
        await asyncio.sleep(0.05)
        serving = serving or asyncio.create_task(here.deliver(handle))
        await until(lambda: numbers)
        await asyncio.sleep(0.05)
        assert numbers == [1]
        pause.set_result(False)
        async with asyncio.timeout(50):
            await serving
        assert numbers == [1, 2, 3]
