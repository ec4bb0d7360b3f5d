"""An owner in the same process, reached without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from ps_wire.connections.in_process import MemoryConnection, memory_pair
from ps_wire.runtime import tasks

if TYPE_CHECKING:
    from ps_wire.connections.connection import Connection
    from ps_wire.v1.frames_pb2 import DirectOffer, SharedMemoryOffer


class MemoryConnector:
    """Opens connections within one process. `serve` is the owner's end, such as `Servicer.serve`."""

    address: Final = "this process"

    def __init__(self, serve: Callable[[Connection], Awaitable[object]]) -> None:
        self._serve = serve
        self._serving: set[asyncio.Task[None]] = set()

    async def connect(self) -> MemoryConnection:
        ours, theirs = memory_pair()

        async def serve() -> None:
            await self._serve(theirs)
            await theirs.close()

        task = asyncio.create_task(serve())
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        return ours

    async def connect_shared_memory(self, offer: SharedMemoryOffer, max_message_bytes: int) -> None:
        return None

    async def connect_direct(self, offer: DirectOffer) -> None:
        return None

    async def close(self) -> None:
        for task in list(self._serving):
            await tasks.end(task)
