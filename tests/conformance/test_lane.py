"""The same promises for the same-host lane."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from ps_service.rpc.lanes import LaneDoor
from ps_wire.connection import Connection
from ps_wire.hosts import host_id
from ps_wire.lane import LaneConnection
from ps_wire.limits import Limits
from ps_wire.v1.frames_pb2 import Hello, LaneOffer
from tests.conformance.connection_suite import ConnectionSuite, Serve, Way
from trainer_client.transport.lane import open_lane


class LaneConnector:
    """Opens lanes at a door, without the session that usually comes before."""

    address = "a lane of this host"

    def __init__(self, door: LaneDoor) -> None:
        self._door = door
        self.opened: list[LaneConnection] = []

    async def connect(self) -> Connection:
        offer = self._door.offer(Hello(trainer=b"t" * 16, host=host_id()))
        assert offer is not None
        self.opened.append(open_lane(offer, Limits().max_message_bytes))
        return self.opened[-1]

    async def connect_lane(self, offer: LaneOffer, max_message_bytes: int) -> None:
        return None

    async def close(self) -> None:
        return None


@pytest.mark.skipif(not host_id(), reason="lanes need Linux")
class TestLane(ConnectionSuite):
    """Between two processes of one host: here, two ends in one."""

    __test__ = True

    @asynccontextmanager
    async def way(self, serve: Serve) -> AsyncIterator[Way]:
        door = LaneDoor(Limits(), serve)
        door.open()
        connector = LaneConnector(door)

        def cut() -> None:
            for lane in connector.opened:
                lane.cut()

        yield Way(connector, cut)
        await door.close()
