"""Tests that other owners are found by name and connected once, and that each object has one reference."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from ps_wire.connections.connection import Connector
from ps_wire.errors import NameConflictError, StaleHandleError, UnavailableError, UnknownNameError
from ps_wire.refs import Ref, new_object_id
from ps_wire.v1.frames_pb2 import Reply
from ps_wire.v1.operations_pb2 import LookupRequest
from tests.trainer_client.scripted_owner import TRAINER, ScriptedOwner, Stream, opened
from trainer_client.handles.other_owners import OtherOwners
from trainer_client.session.session import Session
from trainer_client.session.settings import Settings
from trainer_client.transport.in_process import MemoryConnector
from trainer_client.transport.resolvers import Candidates

HERE, THERE = "127.0.0.1:1", "there:1"
SETTINGS = Settings(connect_timeout=5.0)


class Dialled(MemoryConnector):
    """Leads to an owner that a test plays, as if it were at an address."""

    def __init__(self, address: str, owner: ScriptedOwner) -> None:
        super().__init__(owner.serve)
        self._address = address

    @property
    def address(self) -> str:
        return self._address


class Places:
    """Owners by their addresses, each of which a test plays."""

    def __init__(self) -> None:
        self.owners: dict[str, ScriptedOwner] = {}
        self.dialled: list[str] = []

    def dial(self, address: str) -> Connector:
        self.dialled.append(address)
        return Dialled(address, self.owners.setdefault(address, ScriptedOwner()))

    async def stream(self, address: str, name: str, **welcome: object) -> Stream:
        """The next stream to an owner, which says that it has that name."""
        stream = await self.owners.setdefault(address, ScriptedOwner()).stream()
        await stream.welcome(owner=name, **welcome)
        return stream


@pytest.fixture
def places() -> Places:
    return Places()


@pytest.fixture
async def known() -> AsyncIterator[tuple[Session, Stream]]:
    """A session with the one owner that is known at first."""
    async with opened() as (session, stream, _):
        yield session, stream


@pytest.fixture
async def others(known: tuple[Session, Stream], places: Places) -> AsyncIterator[OtherOwners]:
    others = OtherOwners(TRAINER, SETTINGS, {"ps0": known[0]}, places.dial)
    yield others
    await others.close()


async def tell(stream: Stream, name: str, address: str) -> None:
    """Answers a look-up for that name."""
    frame = await stream.request()
    assert frame.request.lookup.name == name
    reply = Reply()
    reply.lookup.member.name, reply.lookup.member.address = name, address
    await stream.answer(frame.number, lookup=reply.lookup)


async def grant(stream: Stream) -> Ref:
    """Answers the next attach; gives what it asks for."""
    frame = await stream.request()
    assert frame.request.HasField("attach"), frame
    await stream.answer(frame.number, attach=Reply().attach)
    return Ref.from_message(frame.request.attach.handle)


# Reaching


async def test_an_owner_that_is_known_is_not_looked_for(
    others: OtherOwners, known: tuple[Session, Stream], places: Places
) -> None:
    session, stream = known
    assert await others.reach("ps0") is session
    await stream.nothing_more()
    assert places.dialled == []


async def test_an_owner_is_looked_up_and_reached_once_however_many_ask(
    others: OtherOwners, known: tuple[Session, Stream], places: Places
) -> None:
    asking = [asyncio.create_task(others.reach("ps1")) for _ in range(3)]
    await tell(known[1], "ps1", THERE)
    stream = await places.stream(THERE, "ps1")
    assert (stream.hello.owner, stream.hello.trainer) == ("ps1", TRAINER)
    sessions = await asyncio.gather(*asking)
    assert len(set(sessions)) == 1 and sessions[0].owner == "ps1"
    assert await others.reach("ps1") is sessions[0]
    assert places.dialled == [THERE]


async def test_an_address_that_is_known_is_not_looked_up(
    others: OtherOwners, known: tuple[Session, Stream], places: Places
) -> None:
    reaching = asyncio.create_task(others.reach("ps1", THERE))
    await places.stream(THERE, "ps1")
    assert (await reaching).owner == "ps1"
    await known[1].nothing_more()


async def test_cancelling_one_waiting_task_does_not_cancel_the_others(others: OtherOwners, places: Places) -> None:
    first, second = [asyncio.create_task(others.reach("ps1", THERE)) for _ in range(2)]
    stream = await places.owners.setdefault(THERE, ScriptedOwner()).stream()
    first.cancel()
    await stream.welcome(owner="ps1")
    assert (await second).owner == "ps1"
    assert first.cancelled()


async def test_two_owners_of_one_name_are_told_apart(others: OtherOwners, places: Places) -> None:
    connecting = asyncio.create_task(others.connect(THERE))
    await places.stream(THERE, "ps0")
    with pytest.raises(NameConflictError, match=f"the owner at {THERE} has the name 'ps0'"):
        await connecting


async def test_a_client_that_was_not_told_how_reaches_no_others(known: tuple[Session, Stream]) -> None:
    others = OtherOwners(TRAINER, SETTINGS, {"ps0": known[0]}, None)
    with pytest.raises(UnknownNameError, match=f"cannot connect to {THERE}"):
        await others.connect(THERE)


async def test_an_owner_that_was_given_up_is_reached_again(others: OtherOwners, places: Places) -> None:
    connecting = asyncio.create_task(others.connect(THERE))
    await places.stream(THERE, "ps1")
    first = await connecting
    await first.close()
    again = asyncio.create_task(others.again(first))
    await places.stream(THERE, "ps1")
    second = await again
    assert second is not first and second.owner == "ps1"
    assert await others.reach("ps1") is second


async def test_one_that_is_asked_and_reached_at_once_has_one_session(others: OtherOwners, places: Places) -> None:
    others._sessions.clear()
    others.candidates = Candidates([HERE])
    asking = [asyncio.create_task(others.asked()) for _ in range(2)]
    nameless = await places.owners.setdefault(HERE, ScriptedOwner()).stream()
    reaching = asyncio.create_task(others.reach("ps1", HERE))
    named = await places.owners[HERE].stream()
    assert (nameless.hello.owner, named.hello.owner) == ("", "ps1")
    await nameless.welcome(owner="ps1")
    await nameless.nothing_more()  # no goodbye, which would end the other one, too
    await named.welcome(owner="ps1")
    session = await reaching
    assert [await each for each in asking] == [session] * 2
    assert session.state == "connected"
    assert others._sessions == {"ps1": session}
    assert places.dialled == [HERE] * 2


# Finding


async def test_owners_are_asked_in_turn_until_one_knows(
    others: OtherOwners, known: tuple[Session, Stream], places: Places
) -> None:
    connecting = asyncio.create_task(others.connect(THERE))
    other = await places.stream(THERE, "ps1")
    await connecting
    finding = asyncio.create_task(others.find("ps2"))
    await known[1].refuse((await known[1].request()).number, UnknownNameError("no such member"))
    await tell(other, "ps2", "elsewhere:1")
    assert (await finding).address == "elsewhere:1"


async def test_an_owner_that_none_knows_is_told(others: OtherOwners, known: tuple[Session, Stream]) -> None:
    reaching = asyncio.create_task(others.reach("ps9"))
    await known[1].refuse((await known[1].request()).number, UnavailableError("it keeps no directory"))
    with pytest.raises(UnknownNameError, match=r"none of the owners known here \(ps0\) can tell where 'ps9' is"):
        await reaching


async def test_only_the_directory_is_asked_where_there_is_one(
    others: OtherOwners, known: tuple[Session, Stream], places: Places
) -> None:
    connecting = asyncio.create_task(others.connect(THERE))
    directory = await places.stream(THERE, "keeper")
    others.directory = await connecting
    finding = asyncio.create_task(others.find("ps2"))
    await directory.refuse((await directory.request()).number, UnknownNameError("the group has no member 'ps2'"))
    with pytest.raises(UnknownNameError, match="the group has no member 'ps2'"):
        await finding
    await known[1].nothing_more()


async def test_a_look_up_that_waits_has_no_deadline_of_its_own(
    others: OtherOwners, known: tuple[Session, Stream]
) -> None:
    session, stream = known
    waiting = others.ask(session, LookupRequest(name="ps1", wait_seconds=5.0))
    first = (await stream.request()).request
    at_once = others.ask(session, LookupRequest(name="ps1"))
    second = (await stream.request()).request
    assert (first.timeout_seconds, second.timeout_seconds > 0) == (0.0, True)
    del waiting, at_once


# Holding


async def test_an_object_is_held_with_one_count_however_often_it_is_met(
    others: OtherOwners, known: tuple[Session, Stream]
) -> None:
    _, stream = known
    ref = Ref("ps0", new_object_id(), "weight")
    taking = asyncio.create_task(others.take_hold([ref]))
    assert await grant(stream) == ref._replace(parameter="")
    held = await taking
    assert others.borrowed == 1
    rref = others.held(ref)
    assert (rref.ref, rref.owner) == (ref, "ps0")
    assert await others.take_hold([ref]) == held
    await stream.nothing_more()
    held.clear()
    await stream.nothing_more()
    del rref, taking
    assert list((await stream.request()).request.release.object_ids) == [ref.object_id]
    assert others.borrowed == 0


async def test_a_superfluous_reference_is_given_back(others: OtherOwners, known: tuple[Session, Stream]) -> None:
    _, stream = known
    ref = Ref("ps0", new_object_id())
    taking = [asyncio.create_task(others.take_hold([ref])) for _ in range(2)]
    for _ in taking:
        await grant(stream)
    one, other = await asyncio.gather(*taking)
    assert one == other
    assert list((await stream.request()).request.release.object_ids) == [ref.object_id]
    await stream.nothing_more()


async def test_objects_of_owners_that_are_not_known_are_held_too(
    others: OtherOwners, known: tuple[Session, Stream], places: Places
) -> None:
    here, there = Ref("ps0", new_object_id()), Ref("ps1", new_object_id())
    taking = asyncio.create_task(others.take_hold([here, there]))
    assert await grant(known[1]) == here
    await tell(known[1], "ps1", THERE)
    stream = await places.stream(THERE, "ps1")
    assert await grant(stream) == there
    held = await taking
    assert others.borrowed == len(held) == 2
    assert others.held(there).session.owner == "ps1"


async def test_an_object_that_is_gone_is_not_held(others: OtherOwners, known: tuple[Session, Stream]) -> None:
    _, stream = known
    taking = asyncio.create_task(others.take_hold([Ref("ps0", new_object_id())]))
    await stream.refuse((await stream.request()).number, StaleHandleError("it is gone"))
    with pytest.raises(StaleHandleError):
        await taking
    assert others.borrowed == 0
