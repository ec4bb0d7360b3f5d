"""The same promises for the shared-memory connection."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from ps_service.rpc.shared_memory import SharedMemoryListener
from ps_wire.connections.connection import Traffic
from ps_wire.limits import Limits
from ps_wire.shared_memory.connection import SharedMemoryConnection
from ps_wire.shared_memory.hosts import host_id
from ps_wire.v1.frames_pb2 import Hello
from tests.conformance.connection_suite import ConnectionSuite, Serve, Way
from tests.conformance.offered_connector import OfferedConnector
from trainer_client.transport.offers import open_shared_memory


@pytest.mark.skipif(not host_id(), reason="shared-memory connections need Linux")
class TestSharedMemory(ConnectionSuite):
    """Between two processes of one host: here, two ends in one."""

    __test__ = True

    @asynccontextmanager
    async def way(self, serve: Serve) -> AsyncIterator[Way]:
        listener = SharedMemoryListener(Limits(), serve, Traffic(), set())
        listener.open()

        async def connect() -> SharedMemoryConnection:
            offer = listener.offer(Hello(trainer=b"t" * 16, host=host_id()))
            assert offer is not None
            return open_shared_memory(offer, Limits().max_message_bytes)

        connector = OfferedConnector("a shared-memory connection of this host", connect)
        yield Way(connector, connector.cut)
        await listener.close()
