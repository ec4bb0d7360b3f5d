"""The same promises for the direct connection."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ps_service import addresses
from ps_service.rpc.direct import DirectListener
from ps_wire.connections.connection import Traffic
from ps_wire.direct import DirectConnection
from ps_wire.v1.frames_pb2 import Hello
from tests.conformance.connection_suite import ConnectionSuite, Serve, Way
from tests.conformance.offered_connector import OfferedConnector
from trainer_client.transport.offers import open_direct

ADDRESS = "127.0.0.1:0"


class TestDirect(ConnectionSuite):
    """Over a TCP socket of this machine."""

    __test__ = True

    @asynccontextmanager
    async def way(self, serve: Serve) -> AsyncIterator[Way]:
        listener = DirectListener(serve, Traffic(), set())
        listener.open(addresses.bound(ADDRESS))

        async def connect() -> DirectConnection:
            offer = listener.offer(Hello(trainer=b"t" * 16))
            assert offer is not None
            return await open_direct(offer, ADDRESS)

        connector = OfferedConnector(ADDRESS, connect)
        yield Way(connector, connector.cut)
        await listener.close()
