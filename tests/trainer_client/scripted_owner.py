"""An owner that a test plays: it sees what a session sends, and sends what the test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np

from ps_wire.codec.payload import PayloadReader, PayloadWriter
from ps_wire.codec.values import Decoder, Encoder
from ps_wire.connections.connection import Connection, ConnectionBroken
from ps_wire.connections.frames import Packet
from ps_wire.connections.in_process import MemoryConnection
from ps_wire.errors import PsError, to_message
from ps_wire.v1.frames_pb2 import Frame, Hello, Part, Reply, Request, Welcome
from ps_wire.v1.operations_pb2 import LookupRequest
from ps_wire.v1.values_pb2 import Value
from trainer_client.pending import DEFAULT, Pending
from trainer_client.session.session import Session
from trainer_client.session.settings import Settings
from trainer_client.transport.in_process import MemoryConnector

TRAINER = bytes(range(16))
PATIENCE = 60.0
"""Seconds after which a test fails that waits for a frame."""


class Stream:
    """One stream from a trainer, at the owner's end.

    Attributes:
        hello: How the trainer introduced itself.
        payload: The first part of the payload of the frame that was read last.
    """

    def __init__(self, connection: MemoryConnection, hello: Hello) -> None:
        self.hello = hello
        self.payload = b""
        self._connection = connection
        self._arrived: asyncio.Queue[Packet] = asyncio.Queue()

    async def read_until_it_ends(self) -> None:
        try:
            while (packet := await self._connection.receive()) is not None:
                if not packet.frame.HasField("part"):
                    self._arrived.put_nowait(packet)
        except ConnectionBroken:
            pass

    async def send(self, frame: Frame, payload: bytes = b"", announced: int = 0) -> None:
        """Sends a frame with its payload, or with the first part of one that has as many bytes as `announced`."""
        frame.payload_bytes = announced or len(payload)
        await self._connection.send(Packet(frame, (memoryview(payload),) if payload else ()))

    async def welcome(self, **fields: Any) -> None:
        """Accepts the session; `fields` override those of the welcome."""
        usual: dict[str, Any] = {
            "owner": "ps0",
            "incarnation": "first",
            "max_in_flight": 64,
            "max_message_bytes": 1 << 30,
        }
        await self.send(Frame(welcome=Welcome(**usual | fields)))

    async def frame(self) -> Frame:
        """The next frame; parts of payloads are left out."""
        async with asyncio.timeout(PATIENCE):
            packet = await self._arrived.get()
        self.payload = b"".join(packet.payload)
        return packet.frame

    async def request(self) -> Frame:
        """The next frame, which has to be a request."""
        frame = await self.frame()
        assert frame.HasField("request"), frame
        return frame

    async def requests(self, count: int) -> list[str]:
        """The names that the next `count` requests look up."""
        return [(await self.request()).request.lookup.name for _ in range(count)]

    async def nothing_more(self) -> None:
        """Checks that the session has nothing else to send now."""
        for _ in range(20):
            await asyncio.sleep(0)
        assert self._arrived.empty(), self._arrived.get_nowait().frame

    async def part(self, number: int, offset: int, payload: bytes) -> None:
        """Sends another part of a payload."""
        frame = Frame(number=number, part=Part(offset=offset))
        await self._connection.send(Packet(frame, (memoryview(payload),)))

    async def answer(self, number: int, payload: bytes = b"", announced: int = 0, **fields: Any) -> None:
        """Answers a request; the address of a look-up is its number, unless `fields` say something else."""
        reply = Reply(**fields)
        if reply.WhichOneof("outcome") is None:
            reply.lookup.member.address = str(number)
        await self.send(Frame(number=number, reply=reply), payload, announced)

    async def refuse(self, number: int, error: PsError) -> None:
        """Answers a request with an error."""
        await self.answer(number, error=to_message(error))

    def cut(self) -> None:
        """Breaks the stream."""
        self._connection.cut()


class ScriptedOwner:
    """Accepts streams, and leaves everything else to the test."""

    def __init__(self) -> None:
        self._streams: asyncio.Queue[Stream] = asyncio.Queue()

    async def serve(self, connection: Connection) -> None:
        assert isinstance(connection, MemoryConnection)
        try:
            first = await connection.receive()
        except ConnectionBroken:
            return
        assert first is not None
        stream = Stream(connection, first.frame.hello)
        self._streams.put_nowait(stream)
        await stream.read_until_it_ends()

    async def stream(self) -> Stream:
        """The next stream that a trainer opens."""
        async with asyncio.timeout(PATIENCE):
            return await self._streams.get()


def new_session(owner: ScriptedOwner, others: Any = None, **settings: Any) -> Session:
    """A session with the owner, not opened."""
    return Session(MemoryConnector(owner.serve), TRAINER, Settings(**settings), others)


@asynccontextmanager
async def opened(
    others: Any = None, settings: dict[str, Any] | None = None, **welcome: Any
) -> AsyncIterator[tuple[Session, Stream, ScriptedOwner]]:
    """An open session, its first stream at the owner, and the owner."""
    owner = ScriptedOwner()
    session = new_session(owner, others, **settings or {})
    opening = asyncio.create_task(session.open())
    stream = await owner.stream()
    await stream.welcome(**welcome)
    await opening
    try:
        yield session, stream, owner
    finally:
        await session.close()


def look_up(session: Session, name: str, nbytes: int = 0, timeout: float | None = DEFAULT) -> Pending[str]:
    """Sends a request that is told from others by its name; its result is the address that is answered."""
    payload = PayloadWriter()
    if nbytes:
        payload.add(memoryview(bytes(nbytes)))
    request = Request(lookup=LookupRequest(name=name))
    return session.submit(request, payload, lambda reply, _: reply.lookup.member.address, timeout)


async def addresses(pending: Sequence[Pending[str]]) -> list[str]:
    """The results of several look-ups."""
    return [await each for each in pending]


async def reconnected(stream: Stream, owner: ScriptedOwner, **welcome: Any) -> Stream:
    """Cuts a stream; gives the next one, on which the session goes on."""
    stream.cut()
    stream = await owner.stream()
    await stream.welcome(**{"resumed": True} | welcome)
    return stream


def encoded(message: Value, value: Any) -> bytes:
    """Writes a value into a message; gives the payload that goes beside it."""
    payload = PayloadWriter()
    Encoder(payload).encode_into(message, value)
    return b"".join(payload.chunks)


def decoded(message: Value, payload: bytes) -> Any:
    """Reads what `encoded` wrote."""
    return Decoder(PayloadReader(np.frombuffer(bytearray(payload), np.uint8))).decode(message)
