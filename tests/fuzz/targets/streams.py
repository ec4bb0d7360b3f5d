"""Sessions with an owner process over each transport, in which most of what is sent was changed."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Final

from ps_wire.limits import PROTOCOL
from ps_wire.shared_memory.connection import NEW_SEGMENT, SEGMENT
from ps_wire.shared_memory.hosts import host_id
from ps_wire.sockets.reader import HEADER
from ps_wire.v1.frames_pb2 import Frame, Welcome
from tests.fuzz.cases import Case, Finding
from tests.fuzz.lines import SEGMENT_PART, GrpcLine, Line, LineEnded, SocketLine
from tests.fuzz.mutations import change, changed_bytes, disordered
from tests.fuzz.recording import Recording, Sent, packed
from tests.fuzz.sessions import SECONDS, Session
from tests.fuzz.targets.wire import changed_frame, split

_LENGTH: Final = 384
"""Frames of a session."""

_BURST: Final = 48
"""Frames after which a valid request has to be answered."""

FRAME, RAW, IN_SEGMENT = b"F", b"R", b"S"
"""The first byte of a part: a frame, other bytes, or a record of shared memory."""


class Streams:
    """Sessions over one transport. `counts` has messages, sessions, and lines that were stuck or ended."""

    def __init__(self, name: str, recording: Recording) -> None:
        self.name = name
        self.counts: Counter[str] = Counter()
        self._recording = recording

    def make(self, chance: random.Random) -> Case:
        """A session: what is sent after the recorded beginning."""
        notes = {"trainer": chance.randbytes(16).hex(), "name": f"{chance.randrange(10**8):08}"}
        if chance.random() < 0.3:
            return self._garbage(chance, notes | {"begins": ""})
        parts, number = [], 1000
        for each in chance.choices(self._recording.sent, k=_LENGTH):
            number += 1
            frame, payload = self._request(each, number, chance)
            if chance.random() < 0.001:  # it often ends the stream
                change(frame, chance)
            if len(frame.SerializeToString()) + len(payload) < 1 << 16:
                parts += split(frame, payload, chance)
        if chance.random() < 0.1:
            parts = disordered(parts, chance)
        made_parts = [FRAME + each for each in parts]
        if self.name == "memory" and chance.random() < 0.7:
            made_parts.append(self._segment(chance))
        return Case(self.name, made_parts, notes | {"begins": "1"})

    def _request(self, sent: Sent, number: int, chance: random.Random) -> tuple[Frame, bytes]:
        """A frame in which what the trainer wants was changed, and not how it is sent."""
        frame, payload = Frame(), sent.payload
        frame.CopyFrom(sent.frame)
        if not frame.HasField("request"):
            frame.Clear()
            frame.confirm.numbers.append(chance.randrange(2**63))
            return frame, b""
        del frame.request.after[:], frame.request.confirmed[:]
        for _ in range(chance.choice([0, 1, 1, 1, 2, 3])):
            change(frame.request, chance)
        if payload and chance.random() < 0.1:
            payload = changed_bytes(payload, chance)
            frame.payload_bytes = len(payload)
        if not frame.request.timeout_seconds and chance.random() < 0.8:
            frame.request.timeout_seconds = 1.0
        frame.number = number if chance.random() < 0.99 else chance.randrange(2**64)
        return frame, payload

    def _segment(self, chance: random.Random) -> bytes:
        """A record of a segment: most often something about it is wrong."""
        sent = chance.choice(self._recording.sent)
        frame, payload = changed_frame(sent, chance)
        size = chance.choice([0, 4096, 1 << 18, 1 << 20, 1 << 33])
        kind = chance.choice([NEW_SEGMENT, NEW_SEGMENT, NEW_SEGMENT, SEGMENT, 3, 4, 6])
        nbytes = chance.choice([len(payload), 0, 1, size, size + 1, 2**63])
        frame.payload_bytes = nbytes
        head = SEGMENT_PART.pack(
            kind, chance.choice([1, 2, 2**32 - 1]), nbytes, size, chance.choice([7, 7, 7, 0, 1, 255])
        )
        return IN_SEGMENT + head + frame.SerializeToString()

    def _garbage(self, chance: random.Random, notes: dict[str, str]) -> Case:
        """A session that has hardly begun, and damaged bytes."""
        parts = []
        for each in chance.choices(self._recording.sent, k=chance.randint(1, 12)):
            frame, payload = changed_frame(each, chance)
            data = packed(Sent(frame, payload))
            if self.name != "grpc":
                body = frame.SerializeToString()
                header = [0, len(body), 0, len(payload)]
                if chance.random() < 0.5:
                    at = chance.randrange(4)
                    header[at] = chance.choice([0, 1, 3, 5, 7, 255, header[at] + 1, 2**31, 2**32 - 1])
                    header[0] %= 256
                data = HEADER.pack(*header) + body + payload
            parts.append(RAW + (changed_bytes(data, chance) if chance.random() < 0.5 else data))
        return Case(self.name, parts, notes)

    async def send(self, case: Case, address: str) -> None:
        """Sends a case. Raises `Finding`."""
        self.counts["sessions"] += 1
        beside: list[GrpcLine] = []
        session: Session | None = None
        try:
            async with asyncio.timeout(60):
                line = await self.open(case, address, beside)
                session = Session(self._recording, line, bytes.fromhex(case.notes["trainer"]), case.notes["name"])
                await self._send_all(session, case)
        except LineEnded:
            self.counts["ended"] += 1
        except TimeoutError:
            self.counts["stuck"] += 1
        finally:
            for each in (session, *beside):
                if each is not None:
                    await each.close()
        if session is not None and session.internal:
            raise Finding(f"an internal error was answered: {session.internal}")

    async def open(self, case: Case, address: str, beside: list[GrpcLine]) -> Line:
        """The line of a case, on which its trainer has been welcomed. Raises `LineEnded` and `TimeoutError`."""
        first = GrpcLine(address)
        hello = Frame()
        hello.hello.protocol, hello.hello.trainer = PROTOCOL, bytes.fromhex(case.notes["trainer"])
        hello.hello.host = host_id() if self.name == "memory" else ""
        try:
            welcome = await self._greeted(first, hello)
        except BaseException:
            await first.close()
            raise
        if self.name == "grpc":
            return first
        beside.append(first)
        line = SocketLine.direct(address, welcome) if self.name == "direct" else SocketLine.shared_memory(welcome)
        try:
            hello.hello.shared_memory_token = welcome.shared_memory.token
            hello.hello.incarnation = welcome.incarnation
            await self._greeted(line, hello)
        except BaseException:
            await line.close()
            raise
        return line

    async def _greeted(self, line: Line, hello: Frame) -> Welcome:
        await line.frames([hello.SerializeToString()])
        async with asyncio.timeout(SECONDS):
            while not (frame := await line.receive()).HasField("welcome"):
                if frame.HasField("refusal"):
                    raise LineEnded(frame.refusal.error.message)
        return frame.welcome

    async def _send_all(self, session: Session, case: Case) -> None:
        if case.notes["begins"]:
            await session.begin()
        number = 10**6
        for i in range(0, len(case.parts), _BURST):
            burst = case.parts[i : i + _BURST]
            await session.line.frames([session.mapped(each[1:]) for each in burst if each[:1] == FRAME])
            for each in burst:
                if each[:1] == RAW:
                    await session.line.raw(session.mapped(each[1:]))
                elif each[:1] == IN_SEGMENT and isinstance(session.line, SocketLine):
                    session.line.segment(session.mapped(each[1:]))
            self.counts["messages"] += len(burst)
            if not case.notes["begins"]:
                continue
            number += 1
            ping = Frame(number=number)
            ping.request.attach.name = "nobody"
            await session.ask(ping.SerializeToString(), number)
        if case.notes["begins"] and case.notes["trainer"][0] < "8":
            bye = Frame()
            bye.goodbye.SetInParent()
            await session.line.frames([bye.SerializeToString()])
