"""Tests that a session that was given up opens again when it is used, if its owner may be elsewhere by then."""

from __future__ import annotations

import asyncio

import pytest

from ps_wire.connections.connection import ConnectionBroken
from ps_wire.connections.in_process import MemoryConnection
from ps_wire.errors import ClosedError, UnavailableError
from tests.trainer_client.scripted_owner import TRAINER, ScriptedOwner, look_up
from trainer_client.session.session import Session
from trainer_client.session.settings import Settings
from trainer_client.transport.following import FollowingConnector
from trainer_client.transport.in_process import MemoryConnector


class Place(MemoryConnector):
    """Leads to an owner that a test plays, if that is there."""

    def __init__(self, owner: ScriptedOwner, there: list[bool]) -> None:
        super().__init__(owner.serve)
        self._there = there

    async def connect(self) -> MemoryConnection:
        if not self._there[-1]:
            raise ConnectionBroken("nothing listens")
        return await super().connect()


async def test_what_was_in_flight_is_given_up_and_later_requests_open_it_again() -> None:
    owner, there = ScriptedOwner(), [True]

    async def find() -> str:
        return "here:1"

    connector = FollowingConnector(find, lambda _: Place(owner, there), "ps0", "here:1")
    session = Session(connector, TRAINER, Settings(reconnect_timeout=0.0))
    opening = asyncio.create_task(session.open())
    stream = await owner.stream()
    await stream.welcome()
    await opening
    lost = look_up(session, "a")
    await stream.request()
    there.append(False)
    stream.cut()
    with pytest.raises(UnavailableError, match="no owner could be reached"):
        await lost
    assert session.state == "closed"
    session.release("object")  # wants no answer, and does not look for the owner
    for _ in range(5):
        await asyncio.sleep(0)
    assert session.state == "closed"
    there.append(True)
    again = look_up(session, "b")
    stream = await owner.stream()
    # So the owner keeps the answer, until it is told that nobody wants it: it may grant references.
    assert (stream.hello.incarnation, stream.hello.unanswered) == ("first", [2, 1])
    await stream.welcome(resumed=True)
    cancelled = await stream.frame()
    assert cancelled.HasField("cancel") and cancelled.number == 1
    assert await stream.requests(1) == ["b"]
    assert list((await stream.request()).request.release.object_ids) == ["object"]
    await stream.answer(2)
    assert await again == "2" and session.losses == 0
    await session.close()
    with pytest.raises(ClosedError):
        await look_up(session, "c")
