"""A session with an owner, on any line, in which anything can be sent."""

from __future__ import annotations

import asyncio
from typing import Final

from ps_wire.v1.errors_pb2 import ErrorCode
from ps_wire.v1.frames_pb2 import Frame
from tests.fuzz.lines import Line, LineEnded
from tests.fuzz.mutations import OWN_SESSION
from tests.fuzz.recording import NAME, Recording, Sent, ids_in, packed

SECONDS: Final = 5.0
"""Seconds within which a valid request is answered, or the line counts as stuck: the owner may read no more from it."""

_MAKES: Final = frozenset({"create", "optimizer", "scheduler", "call", "attach"})


class Session:
    """A session in which the beginning of a recording has been sent again: its objects have other ids now."""

    def __init__(self, recording: Recording, line: Line, trainer: bytes, name: str) -> None:
        self.line = line
        self.trainer = trainer
        self.internal = ""
        self._recording = recording
        self._known = {recording.trainer: trainer, NAME.encode(): name.encode()}
        self._known[OWN_SESSION.encode()] = trainer.hex()[: len(OWN_SESSION)].encode()
        self._waiting: dict[int, asyncio.Future[Frame]] = {}
        self._reader = asyncio.create_task(self._read())
        self.number = 0

    async def _read(self) -> None:
        try:
            while True:
                frame = await self.line.receive()
                if frame.HasField("reply"):
                    error = frame.reply.error
                    if error.code == ErrorCode.ERROR_INTERNAL:
                        self.internal = f"{error.message}\n{error.traceback}"
                    if (found := self._waiting.pop(frame.number, None)) is not None and not found.done():
                        found.set_result(frame)
        except LineEnded as error:
            for each in self._waiting.values():
                if not each.done():
                    each.set_exception(LineEnded(str(error)))
            self._waiting.clear()

    async def ask(self, data: bytes, number: int) -> Frame:
        """Sends a request, and waits for its answer. Raises `LineEnded` and `TimeoutError`."""
        if self._reader.done():
            raise LineEnded
        waiting = self._waiting[number] = asyncio.get_running_loop().create_future()
        await self.line.frames([data])
        async with asyncio.timeout(SECONDS):
            return await waiting

    async def begin(self) -> None:
        """Makes the objects of the recording."""
        for each in self._recording.sent[1:]:
            if each.operation not in _MAKES:
                continue
            frame = Frame()
            frame.CopyFrom(each.frame)
            self.number += 1
            frame.number = self.number
            del frame.request.after[:], frame.request.confirmed[:]
            data = self.mapped(packed(Sent(frame, each.payload)))
            reply = await self.ask(data, frame.number)
            self._known.update(zip(each.ids, ids_in(reply.SerializeToString()), strict=False))

    def mapped(self, data: bytes) -> bytes:
        """What was recorded, with the ids and names of this session."""
        for before, now in self._known.items():
            if before in data:
                data = data.replace(before, now)
        return data

    async def close(self) -> None:
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)
        await self.line.close()
