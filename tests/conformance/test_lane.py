"""The promises of a connection, held against the same-host lane: two ends of one pair of sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from ps_wire.connection import Connection
from ps_wire.hosts import host_id
from ps_wire.lane import LaneConnection
from ps_wire.limits import MIB
from tests.conformance.connection_suite import ConnectionSuite, Serve, Way


class LaneConnector:
    """Opens lanes to somebody in the same process."""

    address = "a lane of this host"

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self._serving: list[asyncio.Task[None]] = []
        self.lanes: list[LaneConnection] = []

    async def connect(self) -> Connection:
        near, far = (LaneConnection(each, 256 * MIB, 64 * MIB) for each in socket.socketpair())
        self._serving.append(asyncio.create_task(self._hold(far)))
        self.lanes += [near, far]
        return near

    async def _hold(self, lane: LaneConnection) -> None:
        await self._serve(lane)
        await lane.close()

    async def close(self) -> None:
        if self._serving:
            await asyncio.wait(self._serving)


@pytest.mark.skipif(not host_id(), reason="lanes need Linux")
class TestLane(ConnectionSuite):
    __test__ = True

    @asynccontextmanager
    async def way(self, serve: Serve) -> AsyncIterator[Way]:
        connector = LaneConnector(serve)

        def cut() -> None:
            for lane in connector.lanes:
                lane.cut()

        yield Way(connector, cut)
        for lane in connector.lanes:
            await lane.close()
