"""Tests the requests of the command line to an owner."""

from __future__ import annotations

import asyncio

from ps_service.cli import probe
from ps_service.hosting.objects import HostedObject
from ps_service.server import Server


async def test_an_owner_of_very_many_objects_tells_its_status(owner: Server) -> None:
    registry, parameter_locks = owner.engine.registry, owner.engine.parameter_locks
    for number in range(25_000):
        registry.add(HostedObject("ps0", None, parameter_locks, f"{number:0>200}"))
    status = await asyncio.to_thread(probe.status, owner.address, 60.0)
    assert len(status.objects) == 25_000 and status.ByteSize() > 5_000_000
