"""Owners that are administered, and what their operator asks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import trainer_client as tc
from ps_service.cli import probe
from ps_service.server import Server
from ps_wire.limits import Limits
from ps_wire.v1 import operations_pb2 as pb
from tests.hosted_models import Gate
from tests.integration.support import serving
from tests.transports import TRANSPORTS

WAIT = 30.0


@asynccontextmanager
async def serving_gates(limits: Limits | None = None, threads: int = 0) -> AsyncIterator[Server]:
    """An owner whose gates are open at the end, whatever happened: its threads could not end otherwise."""
    gates: list[Gate] = []
    begin = Gate.__init__

    def remembered(gate: Gate) -> None:
        begin(gate)
        gates.append(gate)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Gate, "__init__", remembered)
        async with serving(limits, threads) as owner:
            try:
                yield owner
            finally:
                for gate in gates:
                    gate.open()


async def listed(owner: Server) -> pb.SessionsReply:
    return await asyncio.to_thread(probe.ask, owner.address, pb.SessionsRequest(), WAIT)


def gate_of(owner: Server) -> Gate:
    """The gate that an owner hosts."""
    (gate,) = [each.value for each in owner.engine.registry.objects() if isinstance(each.value, Gate)]
    return gate


async def entered(owner: Server, callers: int) -> None:
    """Waits until so many calls wait at the gate."""
    await asyncio.to_thread(gate_of(owner).wait_for, callers)


async def checkpoint(address: str) -> pb.CheckpointReply:
    return await asyncio.to_thread(probe.ask, address, pb.CheckpointRequest(), 2 * WAIT)


async def evict(owner: Server, **what: Any) -> pb.EvictReply:
    return await asyncio.to_thread(probe.ask, owner.address, pb.EvictRequest(**what), WAIT)


def id_of(ps: tc.Client) -> str:
    return ps.trainer.hex()[:8]


@asynccontextmanager
async def training(owner: Server, transport: str = "grpc") -> AsyncIterator[tc.Client]:
    async with tc.connect(owner.address, **TRANSPORTS[transport]) as ps:
        yield ps
