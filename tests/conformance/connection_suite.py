"""What `ps_wire.connections.connection` promises, as tests that every connection has to pass.

A subclass says only how a connection is made and how it is cut.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import ClassVar

import pytest

from ps_wire.connections.assembler import Assembler
from ps_wire.connections.connection import Connection, ConnectionBroken, Connector
from ps_wire.connections.frames import Packet
from ps_wire.connections.outbox import Outbox
from ps_wire.limits import MAX_FRAME_BYTES, PART_BYTES
from ps_wire.v1.frames_pb2 import Cancel, Frame, Part

Serve = Callable[..., Awaitable[None]]
"""Serves a connection until it ends. A listener gives it what it knows of the connection, too."""


@cache
def numbered(nbytes: int) -> bytes:
    """All bytes in turn."""
    return bytes(range(256)) * (nbytes // 256)


@dataclass
class Way:
    """A connector and the server that it connects to.

    Attributes:
        connector: Opens connections.
        cut: Breaks those that are open, as a pulled cable does.
    """

    connector: Connector
    cut: Callable[[], None]


@dataclass
class Ends:
    """The two ends of a connection.

    Attributes:
        near: The trainer's.
        far: The owner's, as its handler sees it.
        cut: Breaks the connection between them.
    """

    near: Connection
    far: Connection
    cut: Callable[[], None]
    _served: asyncio.Event = field(repr=False)

    async def close_far(self) -> None:
        """The owner closes: its handler closes the connection and returns."""
        await self.far.close()
        self._served.set()

    async def close_near(self) -> list[Packet]:
        """The trainer closes and the owner does so too; returns what the owner still received."""
        closing = asyncio.create_task(self.near.close())
        arrived = await everything(self.far)
        await self.close_far()
        await closing
        return arrived


class Host:
    """Serves connections by keeping each open until its owner's end was closed."""

    def __init__(self) -> None:
        self._arrived: asyncio.Queue[tuple[Connection, asyncio.Event]] = asyncio.Queue()
        self._served: list[asyncio.Event] = []

    async def serve(self, connection: Connection, *known: object) -> None:
        served = asyncio.Event()
        self._served.append(served)
        self._arrived.put_nowait((connection, served))
        await served.wait()

    async def ends(self, way: Way) -> Ends:
        near = await way.connector.connect()
        far, served = await self._arrived.get()
        return Ends(near, far, way.cut, served)

    def release(self) -> None:
        for served in self._served:
            served.set()


def packet(number: int, *payload: bytes) -> Packet:
    return Packet(Frame(number=number, part=Part()), tuple(map(memoryview, payload)))


def told(received: Packet | None) -> tuple[int, bytes]:
    assert received is not None
    return received.frame.number, b"".join(received.payload)


async def everything(connection: Connection) -> list[Packet]:
    """What arrives until the other side has closed."""
    found = []
    while (received := await connection.receive()) is not None:
        found.append(received)
    return found


class ConnectionSuite:
    """What holds for every connection; a subclass says how one is made."""

    __test__ = False

    owner_sees_cuts: ClassVar[bool] = True
    """Whether the owner's end tells a cut from a close. Where it does not, a cut looks like a close to it."""

    @asynccontextmanager
    async def way(self, serve: Serve) -> AsyncIterator[Way]:
        """A way to `serve`."""
        raise NotImplementedError
        yield

    @pytest.fixture
    async def host(self) -> Host:
        return Host()

    @pytest.fixture
    async def there(self, host: Host) -> AsyncIterator[Way]:
        async with asyncio.timeout(50), self.way(host.serve) as way:
            yield way
            host.release()
            await way.connector.close()

    @pytest.fixture
    async def ends(self, host: Host, there: Way) -> AsyncIterator[Ends]:
        ends = await host.ends(there)
        yield ends
        host.release()
        await ends.near.close()

    async def test_packets_arrive_in_order(self, ends: Ends) -> None:
        for one, other in ((ends.near, ends.far), (ends.far, ends.near)):
            for number in range(1, 101):
                await one.send(packet(number, b"x" * number))
            for number in range(1, 101):
                assert told(await other.receive()) == (number, b"x" * number)

    async def test_packets_cross_in_both_directions_at_once(self, ends: Ends) -> None:
        sizes = [1, 0, 100_000, 17, 3] * 40

        async def send(connection: Connection, fill: bytes) -> None:
            for number, size in enumerate(sizes, 1):
                await connection.send(packet(number, fill * size))

        async def expect(connection: Connection, fill: bytes) -> None:
            for number, size in enumerate(sizes, 1):
                assert told(await connection.receive()) == (number, fill * size)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(send(ends.near, b"n"))
            tasks.create_task(send(ends.far, b"f"))
            tasks.create_task(expect(ends.far, b"n"))
            tasks.create_task(expect(ends.near, b"f"))

    async def test_a_question_gets_its_answer_again_and_again(self, ends: Ends) -> None:
        for number in range(1, 51):
            await ends.near.send(packet(number, b"ping"))
            assert told(await ends.far.receive()) == (number, b"ping")
            await ends.far.send(packet(number, b"pong"))
            assert told(await ends.near.receive()) == (number, b"pong")

    async def test_header_and_payload_arrive_as_they_were(self, ends: Ends) -> None:
        sent = [
            packet(2**64 - 1, b"", b"in", b" ", b"pieces"),
            Packet(Frame(number=3, cancel=Cancel(), payload_bytes=5), (memoryview(b"three"),)),
            Packet(Frame(number=4, cancel=Cancel())),
            Packet(Frame()),
            Packet(Frame(), (memoryview(b"only a payload"),)),
        ]
        for one, other in ((ends.near, ends.far), (ends.far, ends.near)):
            for each in sent:
                await one.send(each)
                received = await other.receive()
                assert received is not None
                assert received.frame == each.frame
                assert b"".join(received.payload) == b"".join(each.payload)

    async def test_a_payload_may_be_changed_after_it_was_sent(self, ends: Ends) -> None:
        for one, other in ((ends.near, ends.far), (ends.far, ends.near)):
            payload = bytearray(b"before")
            await one.send(Packet(Frame(number=1), (memoryview(payload),)))
            payload[:] = b"after!"
            assert told(await other.receive()) == (1, b"before")

    @pytest.mark.parametrize("nbytes", [PART_BYTES, MAX_FRAME_BYTES], ids=["a part", "the largest frame"])
    async def test_large_payloads_arrive_whole(self, ends: Ends, nbytes: int) -> None:
        data = numbered(nbytes)
        for one, other in ((ends.near, ends.far), (ends.far, ends.near)):
            sending = asyncio.create_task(one.send(packet(7, data)))
            received = await other.receive()
            assert received is not None and received.frame.number == 7
            begin = 0
            for part in received.payload:
                assert bytes(part) == data[begin : begin + len(part)]
                begin += len(part)
            assert begin == nbytes
            await sending

    async def test_the_owners_close_arrives_after_its_messages(self, ends: Ends) -> None:
        for number in range(1, 11):
            await ends.far.send(packet(number))
        await ends.close_far()
        assert [each.frame.number for each in await everything(ends.near)] == list(range(1, 11))
        assert await ends.near.receive() is None

    async def test_the_trainers_close_arrives_after_its_messages(self, ends: Ends) -> None:
        for number in range(1, 11):
            await ends.near.send(packet(number))
        assert [each.frame.number for each in await ends.close_near()] == list(range(1, 11))
        assert await ends.far.receive() is None

    async def test_a_receiver_is_told_that_the_other_side_has_closed(self, ends: Ends) -> None:
        waiting = asyncio.create_task(ends.near.receive())
        await asyncio.sleep(0)
        await ends.close_far()
        assert await waiting is None

    async def test_a_receiving_owner_is_told_that_the_trainer_has_closed(self, ends: Ends) -> None:
        waiting = asyncio.create_task(ends.far.receive())
        await asyncio.sleep(0)
        closing = asyncio.create_task(ends.near.close())
        assert await waiting is None
        await ends.close_far()
        await closing

    async def test_a_receiver_is_told_that_the_connection_was_cut(self, ends: Ends) -> None:
        near, far = asyncio.create_task(ends.near.receive()), asyncio.create_task(ends.far.receive())
        await asyncio.sleep(0)
        ends.cut()
        with pytest.raises(ConnectionBroken):
            await near
        if self.owner_sees_cuts:
            with pytest.raises(ConnectionBroken):
                await far
        else:
            assert await far is None

    async def test_a_cut_connection_stays_broken(self, ends: Ends) -> None:
        await ends.near.send(packet(1))
        assert told(await ends.far.receive()) == (1, b"")
        ends.cut()
        for _ in range(3):
            with pytest.raises(ConnectionBroken):
                await ends.near.receive()
            with pytest.raises(ConnectionBroken):
                await ends.near.send(packet(2))

    async def test_nothing_can_be_sent_after_closing(self, ends: Ends) -> None:
        await ends.close_far()
        with pytest.raises(ConnectionBroken):
            await ends.far.send(packet(1))
        await ends.near.close()
        with pytest.raises(ConnectionBroken):
            await ends.near.send(packet(1))

    async def test_nothing_can_be_sent_to_a_side_that_has_closed(self, ends: Ends) -> None:
        await ends.close_far()
        assert await ends.near.receive() is None
        for _ in range(3):
            with pytest.raises(ConnectionBroken):
                await ends.near.send(packet(1))

    async def test_the_owner_cannot_send_to_a_trainer_that_has_closed(self, ends: Ends) -> None:
        await ends.close_near()
        with pytest.raises(ConnectionBroken):
            await ends.far.send(packet(1))

    async def test_receiving_after_closing_comes_to_an_end(self, ends: Ends) -> None:
        await ends.far.send(packet(1))
        await ends.close_near()
        for end in (ends.near, ends.far):
            try:
                assert len(await everything(end)) <= 1
            except ConnectionBroken:
                continue

    async def test_closing_wakes_a_receiver_on_the_same_side(self, ends: Ends) -> None:
        waiting = asyncio.create_task(ends.near.receive())
        await asyncio.sleep(0)
        await ends.close_near()
        try:
            assert await waiting is None
        except ConnectionBroken:
            assert not waiting.cancelled()

    async def test_closing_again_does_nothing(self, ends: Ends) -> None:
        await ends.close_near()
        for _ in range(2):
            await ends.near.close()
            await ends.far.close()
            assert await ends.far.receive() is None
            for end in (ends.near, ends.far):
                with pytest.raises(ConnectionBroken):
                    await end.send(packet(1))

    async def test_a_cut_connection_can_be_closed(self, ends: Ends) -> None:
        ends.cut()
        with pytest.raises(ConnectionBroken):
            await ends.near.receive()
        for _ in range(2):
            await ends.near.close()
            await ends.far.close()
            for end in (ends.near, ends.far):
                with pytest.raises(ConnectionBroken):
                    await end.send(packet(1))

    async def test_cancelling_a_receiver_has_no_other_effect(self, ends: Ends) -> None:
        waiting = asyncio.create_task(ends.near.receive())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    async def test_connections_of_one_connector_do_not_share_their_fate(self, host: Host, there: Way) -> None:
        first, second = await host.ends(there), await host.ends(there)
        await first.close_near()
        await second.near.send(packet(1, b"still here"))
        assert told(await second.far.receive()) == (1, b"still here")
        await second.close_near()

    async def test_a_connector_says_where_it_leads_and_closes_twice(self, there: Way) -> None:
        assert there.connector.address
        await there.connector.close()
        await there.connector.close()

    async def test_messages_that_are_put_together_arrive_in_order(self, ends: Ends) -> None:
        outbox = Outbox()
        writer = asyncio.create_task(outbox.drain(ends.near))
        await asyncio.sleep(0)
        sizes = (0, 10, 5000, 40_000, 0, 300_000, 3 * PART_BYTES, 7)
        with outbox.together():
            for number, nbytes in enumerate(sizes):
                with outbox.together():
                    outbox.put(Frame(number=number, cancel=Cancel()), (memoryview(bytes([number]) * nbytes),), nbytes)
        assembler = Assembler(4 * PART_BYTES)
        arrived: dict[int, bytes] = {}
        while len(arrived) < len(sizes):
            received = await ends.far.receive()
            assert received is not None
            message = assembler.feed(received)
            if message is not None:
                arrived[message.frame.number] = b"" if message.payload is None else bytes(message.payload)
        assert arrived == {number: bytes([number]) * nbytes for number, nbytes in enumerate(sizes)}
        small = [number for number in arrived if sizes[number] <= 40_000]
        assert small == sorted(small)
        writer.cancel()
        await asyncio.wait([writer])

    async def test_messages_put_together_on_a_connection_that_is_cut_raise_nothing(self, ends: Ends) -> None:
        outbox = Outbox()
        writer = asyncio.create_task(outbox.drain(ends.near))
        await asyncio.sleep(0)
        with outbox.together():
            outbox.put(Frame(number=1, cancel=Cancel()))
            ends.cut()
            outbox.put(Frame(number=2, cancel=Cancel()))
        with pytest.raises(ConnectionBroken):
            await ends.near.receive()
        with pytest.raises(ConnectionBroken):
            await ends.near.send(packet(3))
        writer.cancel()
        await asyncio.wait([writer])
