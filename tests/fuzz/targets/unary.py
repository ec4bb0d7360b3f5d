"""Unary calls of all methods of an owner process."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any, ClassVar, Final

import grpc

from ps_wire.v1.frames_pb2 import Request
from tests.fuzz.cases import Case, Finding
from tests.fuzz.lines import LineEnded
from tests.fuzz.mutations import change, changed_bytes, made
from tests.fuzz.recording import Recording
from tests.fuzz.sessions import Session
from tests.fuzz.targets.streams import Streams

_LENGTH: Final = 384
"""Calls of a case."""

_AT_ONCE: Final = 48


class Unary:
    """Unary calls of all methods, with the objects of a session. A part is the name of the operation, its metadata and
    its message."""

    name: ClassVar[str] = "unary"

    def __init__(self, recording: Recording, operations: list[str]) -> None:
        self.counts: Counter[str] = Counter()
        self._recording = recording
        self._operations = operations
        self._seeds = [each for each in recording.sent if each.operation and not each.payload]

    def make(self, chance: random.Random) -> Case:
        """As `Streams.make`."""
        notes = {"trainer": chance.randbytes(16).hex(), "name": f"{chance.randrange(10**8):08}"}
        parts = []
        for i in range(_LENGTH):
            if chance.random() < 0.6:
                seed = chance.choice(self._seeds)
                name = seed.operation
                message: Any = getattr(Request(), name)
                message.CopyFrom(getattr(seed.frame.request, name))
                for _ in range(chance.randint(0, 3)):
                    change(message, chance)
            else:
                name = chance.choice(self._operations)
                message = made(getattr(Request(), name).DESCRIPTOR, chance, 4)
            data = message.SerializeToString()
            if chance.random() < 0.05:
                data = changed_bytes(data, chance)
            trainer = notes["trainer"] if chance.random() < 0.95 else chance.choice(["", "zz", "0" * 31])
            number = str(i + 1) if chance.random() < 0.5 else chance.choice(["0", "1", "99999999999999999999", "x"])
            if len(data) < 1 << 16:
                parts.append(b"\0".join((name.encode(), trainer.encode(), number.encode(), data)))
        return Case(self.name, parts, notes)

    async def send(self, case: Case, address: str) -> None:
        """As `Streams.send`."""
        self.counts["sessions"] += 1
        streams = Streams("grpc", self._recording)
        session: Session | None = None
        found: list[str] = []
        try:
            line = await streams.open(case, address, [])
            session = Session(self._recording, line, bytes.fromhex(case.notes["trainer"]), case.notes["name"])
            await session.begin()
            async with grpc.aio.insecure_channel(address) as channel:
                for i in range(0, len(case.parts), _AT_ONCE):
                    burst = case.parts[i : i + _AT_ONCE]
                    calls = (self._call(channel, session, each, found) for each in burst)
                    await asyncio.gather(*calls)
                    self.counts["messages"] += len(burst)
        except (LineEnded, TimeoutError):
            self.counts["ended"] += 1
        finally:
            if session is not None:
                await session.close()
        if found:
            raise Finding(f"an internal error was answered: {found[0]}")

    async def _call(self, channel: grpc.aio.Channel, session: Session, part: bytes, found: list[str]) -> None:
        name, trainer, number, data = part.split(b"\0", 3)
        method = name.decode().title().replace("_", "")
        metadata = (("ps-trainer", trainer.decode()), ("ps-number", number.decode()))
        call: Any = channel.unary_unary(f"/ps_wire.v1.Owner/{method}")
        try:
            await call(session.mapped(data), metadata=metadata, timeout=2.0)
        except grpc.RpcError as error:
            code = error.code()  # type: ignore[attr-defined]
            if code is grpc.StatusCode.INTERNAL or "Unexpected <class" in str(error.details()):  # type: ignore[attr-defined]
                found.append(f"{method}: {code} {error.details()}")  # type: ignore[attr-defined]
