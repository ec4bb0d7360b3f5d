"""The directory of an owner that is killed has the members that it had acknowledged when it starts again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import trainer_client as tc
from ps_wire.v1.frames_pb2 import Request
from ps_wire.v1.operations_pb2 import LookupRequest, RegisterRequest
from tests.integration.restarting import Owner
from tests.waiting import until


def ask(client: tc.Client, **request: Any) -> Any:
    return client.session("ps0").submit(Request(**request), None, lambda reply, _: reply)


def entries(owner: Owner) -> list[tuple[str, str, int, bool]]:
    return [(each.name, each.address, each.id, each.is_owner) for each in owner.server.engine.directory.members()]


@pytest.mark.parametrize("checkpoint", [False, True])
async def test_members_that_have_entered_are_there_and_those_that_have_left_are_not(
    tmp_path: Path, checkpoint: bool
) -> None:
    async with (
        Owner(tmp_path, durability="always") as owner,
        tc.connect(owner.address) as ps,
        tc.connect(owner.address) as other,
    ):
        await ask(ps, register=RegisterRequest(name="anna", address="here:1", is_owner=True))
        if checkpoint:
            await asyncio.to_thread(owner.server.engine.checkpoints.write)
        await ask(ps, register=RegisterRequest(name="anna", address="here:2", is_owner=True))
        await ask(other, register=RegisterRequest(name="bert", address="there:1", id=7))
        with pytest.raises(tc.errors.NameConflictError):
            await ask(other, register=RegisterRequest(name="carl", address="there:2", id=7))
        await owner.crash()
        assert entries(owner) == [("anna", "here:2", 0, True), ("bert", "there:1", 7, False)]
        found = await ask(ps, lookup=LookupRequest(name="bert"))
        assert (found.lookup.member.address, found.lookup.member.id) == ("there:1", 7)
        with pytest.raises(tc.errors.NameConflictError):
            await ask(other, register=RegisterRequest(name="anna", address="there:1"))
        await other.close()
        await until(lambda: len(owner.server.engine.sessions) == 1)
        await owner.crash()
        assert entries(owner) == [("anna", "here:2", 0, True)]
