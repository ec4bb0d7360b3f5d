"""The same promises for the direct connection."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ps_service import addresses
from ps_service.rpc.direct import DirectListener
from ps_wire.connections.connection import Connection
from ps_wire.direct.connection import DirectConnection
from ps_wire.v1.frames_pb2 import DirectOffer, Hello, SharedMemoryOffer
from tests.conformance.connection_suite import ConnectionSuite, Serve, Way
from trainer_client.transport.direct import open_direct


class DirectConnector:
    """Opens direct connections, without the session that usually comes before."""

    address = "127.0.0.1:0"

    def __init__(self, listener: DirectListener) -> None:
        self._listener = listener
        self.opened: list[DirectConnection] = []

    async def connect(self) -> Connection:
        offer = self._listener.offer(Hello(trainer=b"t" * 16))
        assert offer is not None
        self.opened.append(await open_direct(offer, self.address))
        return self.opened[-1]

    async def connect_shared_memory(self, offer: SharedMemoryOffer, max_message_bytes: int) -> None:
        return None

    async def connect_direct(self, offer: DirectOffer) -> None:
        return None

    async def close(self) -> None:
        return None


class TestDirect(ConnectionSuite):
    """Over a TCP socket of this machine."""

    __test__ = True

    @asynccontextmanager
    async def way(self, serve: Serve) -> AsyncIterator[Way]:
        listener = DirectListener(serve)
        listener.open(addresses.bound("127.0.0.1:0"))
        connector = DirectConnector(listener)

        def cut() -> None:
            for direct in connector.opened:
                direct.cut()

        yield Way(connector, cut)
        await listener.close()
