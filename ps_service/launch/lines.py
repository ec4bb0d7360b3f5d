"""The lines that a program writes."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Callable
from typing import IO, Final

Take = Callable[[bytes], object]
"""Takes a line, with its end. A carriage return alone ends one, too: progress bars write these."""

_END: Final = re.compile(rb"\n|\r\n|\r(?=[^\n])")

_READ_BYTES: Final = 1 << 16

_LONGEST: Final = 1 << 20
"""Bytes without an end after which they are taken for a line."""


class Reader:
    """Hands on what comes out of a pipe, line by line, and closes the pipe at its end.

    Attributes:
        ended: Is set when all is handed on.
    """

    def __init__(self, pipe: IO[bytes], take: Take) -> None:
        self.ended: Final = asyncio.Event()
        self._pipe = pipe
        self._take = take
        self._rest = b""
        os.set_blocking(pipe.fileno(), False)
        asyncio.get_running_loop().add_reader(pipe.fileno(), self._read)

    def close(self) -> None:
        """Reads no more."""
        if not self._pipe.closed:
            asyncio.get_running_loop().remove_reader(self._pipe.fileno())
            self._pipe.close()
            if self._rest:
                self._take(self._rest + b"\n")
            self.ended.set()

    def _read(self) -> None:
        try:
            data = os.read(self._pipe.fileno(), _READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            self.close()
            return
        data, end = self._rest + data, 0
        for found in _END.finditer(data):
            begin, end = end, found.end()
            self._take(data[begin:end])
        self._rest = data[end:]
        if len(self._rest) > _LONGEST:
            self._take(self._rest + b"\n")
            self._rest = b""


class Lines:
    """The lines that `take` was called with, one after the other as text without their ends, until `end`."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue()

    def take(self, line: bytes) -> None:
        """Adds one."""
        self._queue.put_nowait(line)

    def end(self) -> None:
        """Ends the iteration behind what is there."""
        self._queue.put_nowait(None)

    async def __aiter__(self) -> AsyncIterator[str]:
        while (line := await self._queue.get()) is not None:
            yield line.decode(errors="replace").rstrip("\r\n")
