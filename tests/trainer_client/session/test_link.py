"""Tests that a broken stream is opened again, and given up only if that is refused or takes too long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from ps_wire import errors
from ps_wire.connections.assembler import Assembler
from ps_wire.connections.connection import Connection, ConnectionBroken
from ps_wire.connections.frames import Packet
from ps_wire.connections.in_process import MemoryConnection
from ps_wire.connections.outbox import Outbox
from ps_wire.errors import InvalidArgumentError, NotAllowedError, PsError, UnavailableError
from ps_wire.v1.frames_pb2 import Confirm, Frame, Goodbye, Hello, Part, Refusal, Reply, Welcome
from tests import waiting
from trainer_client.session.link import Link
from trainer_client.session.settings import Settings
from trainer_client.transport.faulty import Direction, Fault, FaultyConnector
from trainer_client.transport.in_process import MemoryConnector

WELCOME = Welcome(owner="ps0", max_message_bytes=1 << 20)
Serve = Callable[[MemoryConnection], Awaitable[None]]


class Diary:
    """Writes down what a link tells it."""

    def __init__(self) -> None:
        self._entries: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()
        self.outbox: Outbox | None = None
        self.connections = 0
        self.failures = 0

    async def next(self) -> tuple[str, Any]:
        async with asyncio.timeout(50):
            return await self._entries.get()

    async def expect(self, *kinds: str) -> Any:
        """The last of some entries that must come next."""
        content = None
        for kind in kinds:
            came, content = await self.next()
            assert came == kind, content
        return content

    @property
    def empty(self) -> bool:
        return self._entries.empty()

    def hello(self) -> Hello:
        self.connections += 1
        return Hello(protocol=self.connections)

    def connected(self, welcome: Welcome, outbox: Outbox) -> None:
        self.outbox = outbox
        self._entries.put_nowait(("connected", welcome))

    def disconnected(self) -> None:
        self.outbox = None
        self._entries.put_nowait(("disconnected", None))

    def unreached(self) -> None:
        self.failures += 1

    def received(self, assembler: Assembler, packet: Packet) -> bool:
        message = assembler.feed(packet)
        if message is not None:
            self._entries.put_nowait(("received", message))
        return False

    def gave_up(self, error: PsError) -> None:
        self._entries.put_nowait(("gave up", error))


class Owner:
    """The other end: runs one script after another, the last one again and again, one for each stream."""

    def __init__(self, *scripts: Serve) -> None:
        self._scripts = scripts
        self.streams = 0
        self.heard: asyncio.Queue[Frame] = asyncio.Queue()

    async def __call__(self, connection: MemoryConnection) -> None:
        script = self._scripts[min(self.streams, len(self._scripts) - 1)]
        self.streams += 1
        await script(connection)

    async def serves(self, connection: MemoryConnection) -> None:
        """Greets, and listens until the stream ends."""
        await self.greets(connection)
        while (packet := await connection.receive()) is not None:
            self.heard.put_nowait(packet.frame)

    async def greets(self, connection: MemoryConnection) -> None:
        """Greets; the stream closes in good order when the script ends."""
        hello = await connection.receive()
        assert hello is not None
        self.heard.put_nowait(hello.frame)
        await connection.send(Packet(Frame(welcome=WELCOME)))


def owner(*scripts: str | Serve) -> Owner:
    made = Owner()
    made._scripts = tuple(getattr(made, each) if isinstance(each, str) else each for each in scripts)
    return made


def says(*frames: Frame, greet: bool = True) -> Serve:
    """A script that sends something, and then waits for the trainer to leave."""

    async def script(connection: MemoryConnection) -> None:
        await connection.receive()
        for frame in ([Frame(welcome=WELCOME)] if greet else []) + list(frames):
            await connection.send(Packet(frame))
        while await connection.receive() is not None:
            pass

    return script


def refuses(error: PsError) -> Serve:
    return says(Frame(refusal=Refusal(error=errors.to_message(error))), greet=False)


StartLink = Callable[..., Link]


@pytest.fixture
async def diary() -> Diary:
    return Diary()


@pytest.fixture
async def start(diary: Diary) -> AsyncIterator[StartLink]:
    """Starts links, and stops them; nothing of them may be left running."""
    links: list[Link] = []
    before = asyncio.all_tasks()

    def start(connector: Any, connect_timeout: float = 20.0, reconnect_timeout: float = 20.0) -> Link:
        connector = connector if hasattr(connector, "connect") else MemoryConnector(connector)
        links.append(Link(connector, Settings(None, connect_timeout, reconnect_timeout), diary))
        links[-1].start()
        return links[-1]

    yield start
    for link in links:
        await link.stop()
    assert asyncio.all_tasks() <= before | {asyncio.current_task()}


# A stream that works


async def test_a_link_introduces_itself_and_is_welcomed(start: StartLink, diary: Diary) -> None:
    there = owner("serves")
    start(there)
    assert (await diary.expect("connected")) == WELCOME
    assert (await there.heard.get()).hello.protocol == 1


async def test_messages_in_the_outbox_are_sent(start: StartLink, diary: Diary) -> None:
    there = owner("serves")
    start(there)
    await diary.expect("connected")
    assert diary.outbox is not None
    diary.outbox.put(Frame(confirm=Confirm(numbers=[1, 2])))
    diary.outbox.put(Frame(goodbye=Goodbye()))
    assert [(await there.heard.get()).WhichOneof("body") for _ in range(3)] == ["hello", "confirm", "goodbye"]


async def test_messages_arrive_whole(start: StartLink, diary: Diary) -> None:
    async def script(connection: MemoryConnection) -> None:
        await connection.receive()
        await connection.send(Packet(Frame(welcome=WELCOME)))
        await connection.send(Packet(Frame(number=1, reply=Reply(), payload_bytes=6), (memoryview(b"abc"),)))
        await connection.send(Packet(Frame(number=2, reply=Reply())))
        await connection.send(Packet(Frame(number=1, part=Part(offset=3)), (memoryview(b"def"),)))
        await connection.receive()

    start(owner(script))
    await diary.expect("connected")
    assert (await diary.expect("received")).frame.number == 2
    whole = await diary.expect("received")
    assert (whole.frame.number, whole.payload.tobytes()) == (1, b"abcdef")


# A stream that breaks


@pytest.mark.parametrize(
    "breaks",
    [
        lambda connection: connection.close(),
        lambda connection: _cut(connection),
        lambda connection: connection.send(Packet(Frame(number=9, part=Part()), (memoryview(b"x"),))),
    ],
    ids=["closed", "cut", "spoilt"],
)
async def test_a_stream_that_ends_is_followed_by_another(start: StartLink, diary: Diary, breaks: Any) -> None:
    there = owner()

    async def script(connection: MemoryConnection) -> None:
        await there.greets(connection)
        await breaks(connection)

    there._scripts = (script, script, there.serves)
    start(there)
    await diary.expect("connected", "disconnected", "connected", "disconnected", "connected")
    assert [(await there.heard.get()).hello.protocol for _ in range(3)] == [1, 2, 3]
    assert diary.empty


async def test_an_attempt_is_made_at_once_if_that_is_asked_for(
    start: StartLink, diary: Diary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that were begun before do not say that the owner is not there now."""
    monkeypatch.setattr("trainer_client.session.link._FIRST_DELAY", 1000.0)
    attempted, answer = asyncio.Event(), asyncio.Event()

    async def fails_late(connection: MemoryConnection) -> None:
        attempted.set()
        await answer.wait()
        await connection.close()

    async def fails(connection: MemoryConnection) -> None:
        await connection.close()

    there = owner(fails_late, fails, "serves")
    link = start(there, connect_timeout=1000.0)
    await attempted.wait()
    link.try_now()
    answer.set()
    await waiting.until(lambda: diary.failures)
    assert (diary.failures, there.streams) == (1, 2)
    link.try_now()
    await diary.expect("connected")
    assert (diary.failures, there.streams) == (1, 3)


async def test_a_packet_that_cannot_be_sent_breaks_the_stream(start: StartLink, diary: Diary) -> None:
    def plan(direction: Direction, count: int, packet: Packet) -> Fault:
        return Fault.CUT if direction is Direction.TO_OWNER and count == 1 else Fault.NONE

    there = owner("serves")
    connector = FaultyConnector(MemoryConnector(there), plan)
    start(connector)
    await diary.expect("connected")
    assert diary.outbox is not None
    diary.outbox.put(Frame(goodbye=Goodbye()))
    await diary.expect("disconnected", "connected")
    assert connector.connections == 2


async def test_an_owner_that_is_not_there_yet_is_waited_for(start: StartLink, diary: Diary) -> None:
    there = owner("serves")
    connector = Absent(2, MemoryConnector(there))
    start(connector)
    await diary.expect("connected")
    assert connector.tries == 3


async def test_an_owner_that_is_shutting_down_is_tried_again(start: StartLink, diary: Diary) -> None:
    there = owner(refuses(UnavailableError("shutting down")), "serves")
    start(there)
    await diary.expect("connected")
    assert there.streams == 2


# Giving up


async def test_an_owner_that_never_comes_is_given_up(start: StartLink, diary: Diary) -> None:
    start(Absent(10**6, MemoryConnector(owner("serves"))), connect_timeout=0.1)
    error = await diary.expect("gave up")
    assert type(error) is UnavailableError
    assert str(error).startswith(
        "no owner could be reached at this process for 0.1 s (no server is there); is it running"
    )


async def test_a_broken_stream_is_given_up_after_its_own_time(start: StartLink, diary: Diary) -> None:
    connector = Absent(0, MemoryConnector(owner("greets")), then_gone=True)
    start(connector, connect_timeout=3600.0, reconnect_timeout=0.1)
    error = await diary.expect("connected", "disconnected", "gave up")
    assert "for 0.1 s (no server is there)" in str(error)


async def test_time_is_counted_anew_from_each_break(start: StartLink, diary: Diary) -> None:
    there = owner("greets", "greets", "greets", "greets", "serves")
    start(there, reconnect_timeout=0.1)
    await diary.expect(*["connected", "disconnected"] * 4, "connected")


async def test_a_refusal_for_good_is_final(start: StartLink, diary: Diary) -> None:
    there = owner(refuses(NotAllowedError("not you")), "serves")
    start(there)
    error = await diary.expect("gave up")
    assert (type(error), str(error)) == (NotAllowedError, "not you")
    assert there.streams == 1


async def test_a_server_with_another_protocol_is_given_up(start: StartLink, diary: Diary) -> None:
    there = owner(says(Frame(goodbye=Goodbye()), greet=False))
    start(there)
    error = await diary.expect("gave up")
    assert (type(error), str(error)) == (InvalidArgumentError, "this process does not speak the owner's protocol")
    assert there.streams == 1


async def test_a_server_that_does_not_answer_is_given_up(start: StartLink, diary: Diary) -> None:
    start(owner(says(greet=False)), connect_timeout=0.0)
    error = await diary.expect("gave up")
    assert type(error) is UnavailableError
    assert "(it does not answer)" in str(error)


@pytest.mark.parametrize("method", ["connected", "received", "disconnected"])
async def test_a_listener_that_fails_is_told_in_the_end(
    start: StartLink, diary: Diary, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(diary, method, fails)
    there = owner(says(Frame(number=1, reply=Reply())) if method == "received" else "greets")
    start(there)
    while (entry := await diary.next())[0] != "gave up":
        pass
    assert type(entry[1]) is UnavailableError
    assert "ZeroDivisionError" in str(entry[1])


# Stopping


async def test_stopping_ends_the_stream_and_calling_it_again_does_nothing(start: StartLink, diary: Diary) -> None:
    link = start(owner("serves"))
    await diary.expect("connected")
    await link.stop()
    await diary.expect("disconnected")
    await link.stop()
    assert diary.empty


async def test_stopping_while_it_waits_to_try_again(start: StartLink, diary: Diary) -> None:
    connector = Absent(10**6, MemoryConnector(owner("serves")))
    link = start(connector)
    await connector.tried.wait()
    await link.stop()
    assert diary.empty


async def test_stopping_in_the_moment_in_which_it_is_told_to_try_again(start: StartLink, diary: Diary) -> None:
    connector = Absent(10**6, MemoryConnector(owner("serves")))
    link = start(connector)
    await connector.tried.wait()
    await waiting.until(lambda: diary.failures > 0)
    link.try_now()
    async with asyncio.timeout(50):
        await link.stop()
    assert diary.empty


async def test_a_link_that_never_started_can_be_stopped(diary: Diary) -> None:
    await Link(MemoryConnector(owner("serves")), Settings(), diary).stop()
    assert diary.empty


class Absent:
    """A connector without a server at the other end, for some attempts or for ever."""

    def __init__(self, times: int, inner: MemoryConnector, then_gone: bool = False) -> None:
        self._times, self._inner, self._then_gone = times, inner, then_gone
        self.tries = 0
        self.tried = asyncio.Event()

    @property
    def address(self) -> str:
        return self._inner.address

    async def connect(self) -> Connection:
        self.tries += 1
        self.tried.set()
        if self.tries <= self._times or (self._then_gone and self.tries > self._times + 1):
            raise ConnectionBroken("no server is there")
        return await self._inner.connect()

    async def close(self) -> None:
        await self._inner.close()


async def _cut(connection: MemoryConnection) -> None:
    connection.cut()
