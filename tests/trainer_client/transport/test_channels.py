"""Tests that channels of both kinds reach an owner, and that no other module opens channels."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from ps_service.server import Server
from ps_wire.errors import UnavailableError
from ps_wire.v1.operations_pb2 import HistoryRequest, StatusReply, StatusRequest
from ps_wire.v1.owner_pb2_grpc import OwnerServicer, OwnerStub, add_OwnerServicer_to_server
from trainer_client.transport.channels import UnaryRequests, open_blocking_channel, open_channel

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


class Odd(OwnerServicer):
    """An owner that never tells its status, and is too busy to tell its history."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def Status(self, request: Any, context: Any) -> None:
        self.asked.set()
        await asyncio.Event().wait()

    async def History(self, request: Any, context: Any) -> None:
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "busy")


@pytest.fixture
async def odd() -> AsyncIterator[tuple[str, Odd]]:
    server, servicer = grpc.aio.server(), Odd()
    add_OwnerServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}", servicer
    await server.stop(None)


async def test_a_request_whose_channel_another_one_closes_fails_and_is_not_cancelled(odd: tuple[str, Odd]) -> None:
    address, owner = odd
    unary = UnaryRequests()
    waiting = asyncio.create_task(unary.ask(address, "Status", StatusRequest(), 60.0))
    await owner.asked.wait()
    with pytest.raises(UnavailableError, match="busy"):
        await unary.ask(address, "History", HistoryRequest(), 60.0)
    with pytest.raises(UnavailableError, match="its connection was closed here"):
        await waiting
    await unary.close()


async def test_a_request_that_is_cancelled_stays_cancelled(odd: tuple[str, Odd]) -> None:
    address, owner = odd
    unary = UnaryRequests()
    waiting = asyncio.create_task(unary.ask(address, "Status", StatusRequest(), 60.0))
    await owner.asked.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await unary.close()


async def test_a_late_failure_leaves_the_channel_that_was_opened_since() -> None:
    used: list[grpc.aio.Channel] = []
    fail, began = asyncio.Event(), asyncio.Event()

    class Stub:
        def __init__(self, channel: grpc.aio.Channel) -> None:
            used.append(channel)

        async def Late(self, *args: Any, **kwargs: Any) -> None:
            began.set()
            await fail.wait()
            nothing = grpc.aio.Metadata()
            raise grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, nothing, nothing)

        async def Prompt(self, *args: Any, **kwargs: Any) -> None:
            pass

    unary = UnaryRequests(stub=Stub)
    late = asyncio.create_task(unary.ask("127.0.0.1:1", "Late", None, 60.0))
    await began.wait()
    await unary.forget("127.0.0.1:1")
    await unary.ask("127.0.0.1:1", "Prompt", None, 60.0)
    fail.set()
    with pytest.raises(UnavailableError):
        await late
    await unary.ask("127.0.0.1:1", "Prompt", None, 60.0)
    assert used[0] is not used[1] and used[1] is used[2]
    await unary.close()


def test_no_other_module_opens_a_channel() -> None:
    paths = [path for package in ("ps_wire", "ps_service", "trainer_client") for path in (ROOT / package).rglob("*.py")]
    found = {
        path.relative_to(ROOT).as_posix()
        for path in paths
        if not path.stem.endswith("_pb2_grpc") and re.search(r"\b(in)?secure_channel\(", path.read_text("utf-8"))
    }
    assert found == {"trainer_client/transport/channels.py"}
