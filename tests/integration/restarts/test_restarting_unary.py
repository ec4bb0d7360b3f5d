"""Tests numbered unary requests across a restart: each runs once, however often it is sent."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

import trainer_client as tc
from ps_wire.v1 import operations_pb2 as pb
from ps_wire.v1.owner_pb2_grpc import OwnerStub
from tests.integration.restarting import TALLY, Owner
from tests.integration.support import GATE
from tests.integration.test_unary import ME, call, create, decoded, error_of


def numbered(number: int) -> Any:
    return (*ME, ("ps-number", str(number)))


async def asked(owner: Owner, method: str, request: Any, number: int) -> Any:
    """One request on a channel of its own."""
    async with grpc.aio.insecure_channel(owner.address) as channel:
        return await getattr(OwnerStub(channel), method)(request, metadata=numbered(number), wait_for_ready=True)


async def test_an_answer_is_given_again_after_a_restart(owner: Owner) -> None:
    tally = (await asked(owner, "Create", create(TALLY, name="tally"), 1)).object.handle
    for _ in range(2):
        assert decoded((await asked(owner, "Call", call(tally, "add", 5), 2)).result) == 5
        await owner.restart()
    assert decoded((await asked(owner, "Call", call(tally, "add", 5), 3)).result) == 10


async def test_a_request_that_is_turned_away_is_run_by_the_next(owner: Owner) -> None:
    tally = (await asked(owner, "Create", create(TALLY, name="tally"), 1)).object.handle
    await owner.server.quiet(0)
    for _ in range(2):
        async with grpc.aio.insecure_channel(owner.address) as channel:
            _, error = await error_of(OwnerStub(channel).Call(call(tally, "add", 5), metadata=numbered(2)))
        assert isinstance(error, tc.errors.UnavailableError)
    await owner.restart()
    assert decoded((await asked(owner, "Call", call(tally, "add", 5), 2)).result) == 5


async def test_a_request_that_is_cut_off_is_not_run_again(owner: Owner) -> None:
    gate = (await asked(owner, "Create", create(GATE, name="gate"), 1)).object.handle
    hosted = owner.server.engine.registry.named("gate").value
    waiting = asyncio.ensure_future(asked(owner, "Call", call(gate, "wait"), 2))
    await asked(owner, "Call", call(gate, "wait_for", 1), 3)
    draining = asyncio.create_task(owner.server.drain(0.05))
    with pytest.raises(grpc.aio.AioRpcError):
        await waiting
    hosted._open.set()
    await draining
    await owner.start()
    async with grpc.aio.insecure_channel(owner.address) as channel:
        code, error = await error_of(
            OwnerStub(channel).Call(call(gate, "wait"), metadata=numbered(2), wait_for_ready=True)
        )
    assert code is grpc.StatusCode.ABORTED
    assert isinstance(error, tc.errors.SessionLostError) and "stopped while this request ran" in str(error)
    assert (await pb_status(owner)).serving


async def pb_status(owner: Owner) -> pb.StatusReply:
    async with grpc.aio.insecure_channel(owner.address) as channel:
        return await OwnerStub(channel).Status(pb.StatusRequest())


async def test_an_answer_is_given_again_after_a_kill(tmp_path: Path) -> None:
    async with Owner(tmp_path, durability="always") as owner:
        tally = (await asked(owner, "Create", create(TALLY, name="tally"), 1)).object.handle
        for number in range(2, 40):
            for _ in range(1 + (number % 6 == 0)):
                found = await asked(owner, "Call", call(tally, "add", 5), number)
                assert decoded(found.result) == 5 * (number - 1)
                if number % 6 == 0:
                    await owner.crash()
        assert len(owner.server.engine.reply_cache) <= 2
