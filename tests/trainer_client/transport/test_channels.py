"""Tests that channels of both kinds reach an owner, and that no other module opens channels."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from ps_service.server import Server
from ps_wire.v1.operations_pb2 import StatusReply, StatusRequest
from ps_wire.v1.owner_pb2_grpc import OwnerStub
from trainer_client.transport.channels import open_blocking_channel, open_channel

ROOT = Path(__file__).parents[3]


async def test_a_channel_for_an_event_loop_reaches_an_owner(owner: Server) -> None:
    async with open_channel(owner.address) as channel:
        reply: StatusReply = await OwnerStub(channel).Status(StatusRequest())
    assert reply.owner == owner.engine.name


async def test_a_blocking_channel_reaches_an_owner(owner: Server) -> None:
    def ask() -> StatusReply:
        with open_blocking_channel(owner.address) as channel:
            reply: StatusReply = OwnerStub(channel).Status(StatusRequest(), timeout=20)
            return reply

    assert (await asyncio.to_thread(ask)).owner == owner.engine.name


def test_no_other_module_opens_a_channel() -> None:
    paths = [path for package in ("ps_wire", "ps_service", "trainer_client") for path in (ROOT / package).rglob("*.py")]
    found = {
        path.relative_to(ROOT).as_posix()
        for path in paths
        if not path.stem.endswith("_pb2_grpc") and re.search(r"\b(in)?secure_channel\(", path.read_text("utf-8"))
    }
    assert found == {"trainer_client/transport/channels.py"}
