"""A relay between a client and a server on this machine, whose connections can be cut."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import TracebackType
from typing import Self


class Relay:
    """Listens on a port of its own and passes bytes on to another, both ways.

    Args:
        port: Where the server listens.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    @property
    def address(self) -> str:
        """Host and port for clients."""
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()
        return f"{host}:{port}"

    def cut(self) -> None:
        """Breaks every connection at once, without a good-bye to either side."""
        for writer in self._writers:
            writer.transport.abort()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", self._port)
        both = {writer, inner_writer}
        self._writers |= both
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_pass_on(reader, inner_writer))
            tasks.create_task(_pass_on(inner_reader, writer))
        self._writers -= both


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(1 << 18):
            writer.write(data)
            await writer.drain()
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()
