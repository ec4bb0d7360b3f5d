"""The same promises for the shared-memory connection."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from ps_service.rpc.shared_memory import SharedMemoryListener
from ps_wire.connections.connection import Connection
from ps_wire.limits import Limits
from ps_wire.shared_memory.connection import SharedMemoryConnection
from ps_wire.shared_memory.hosts import host_id
from ps_wire.v1.frames_pb2 import DirectOffer, Hello, SharedMemoryOffer
from tests.conformance.connection_suite import ConnectionSuite, Serve, Way
from trainer_client.transport.shared_memory import open_shared_memory


class SharedMemoryConnector:
    """Opens shared-memory connections at a door, without the session that usually comes before."""

    address = "a shared-memory connection of this host"

    def __init__(self, door: SharedMemoryListener) -> None:
        self._door = door
        self.opened: list[SharedMemoryConnection] = []

    async def connect(self) -> Connection:
        offer = self._door.offer(Hello(trainer=b"t" * 16, host=host_id()))
        assert offer is not None
        self.opened.append(open_shared_memory(offer, Limits().max_message_bytes))
        return self.opened[-1]

    async def connect_shared_memory(self, offer: SharedMemoryOffer, max_message_bytes: int) -> None:
        return None

    async def connect_direct(self, offer: DirectOffer) -> None:
        return None

    async def close(self) -> None:
        return None


@pytest.mark.skipif(not host_id(), reason="shared-memory connections need Linux")
class TestSharedMemory(ConnectionSuite):
    """Between two processes of one host: here, two ends in one."""

    __test__ = True

    @asynccontextmanager
    async def way(self, serve: Serve) -> AsyncIterator[Way]:
        door = SharedMemoryListener(Limits(), serve)
        door.open()
        connector = SharedMemoryConnector(door)

        def cut() -> None:
            for shared_memory in connector.opened:
                shared_memory.cut()

        yield Way(connector, cut)
        await door.close()
