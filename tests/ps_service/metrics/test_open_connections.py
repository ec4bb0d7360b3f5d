"""Tests that connections and their shared memory count while they are open."""

from __future__ import annotations

import socket
from contextlib import ExitStack

import pytest

from ps_service.metrics.open_connections import OpenConnections
from ps_wire.connections.frames import Packet
from ps_wire.limits import MIB
from ps_wire.shared_memory.connection import SharedMemoryConnection
from ps_wire.shared_memory.hosts import host_id
from ps_wire.v1.frames_pb2 import Frame

pytestmark = pytest.mark.skipif(not host_id(), reason="shared-memory connections need Linux")


async def test_connections_count_while_they_are_open() -> None:
    opened = OpenConnections()
    assert (len(opened), opened.shared_bytes) == (0, 0)
    with ExitStack() as stack:
        ends = [stack.enter_context(end) for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)]
        one, other = (SharedMemoryConnection(end, MIB, MIB) for end in ends)
        opened.add(one)
        opened.add(other)
        await one.send(Packet(Frame(), (memoryview(bytes(MIB // 2)),)))
        assert (len(opened), opened.shared_bytes) == (2, one.shared_bytes)
        assert one.shared_bytes >= MIB // 2
        opened.remove(one)
        assert (len(opened), opened.shared_bytes) == (1, 0)
        opened.remove(one)
        assert len(opened) == 1, "one that is not there is no error"
        await one.close()
        await other.close()
