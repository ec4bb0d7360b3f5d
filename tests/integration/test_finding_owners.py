"""Trainers that are told the names of owners, and the address of one that knows where the others are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest

import trainer_client as tc
from ps_service.server import Server
from ps_wire.connections.connection import Connection, Connector
from tests.conftest import StartOwner
from tests.owner_groups import OwnerGroup
from tests.waiting import until
from trainer_client.transport.in_process import MemoryConnector

COUNTER = "tests.hosted_models.Counter"


@pytest.fixture
async def group() -> AsyncIterator[OwnerGroup]:
    """A group of which the keeper of the directory is there."""
    async with OwnerGroup() as group:
        await group.enter("directory")
        yield group


async def test_the_group_its_members_and_their_states_are_told(group: OwnerGroup) -> None:
    (await group.enter("ps0"), await group.enter("ps1"))
    addresses = {agent.name: agent.server.address for agent in group.agents.values()}
    async with tc.connect("ps1", "ps0", directory=group.directory) as ps:
        told = ", ".join(f"{name} at {addresses[name]}, connected" for name in ("ps1", "ps0", "directory"))
        assert repr(ps) == f"<Client of the group with its directory at {group.directory}: {told}>"
    assert repr(ps).count(", closed") == 3
    async with tc.connect(addresses["ps0"]) as alone:
        assert repr(alone) == f"<Client of ps0 at {addresses['ps0']}, connected>"


async def test_owners_are_found_by_name_and_come_first_in_their_order(group: OwnerGroup) -> None:
    for name in ("ps0", "ps1"):
        await group.enter(name)
    async with tc.connect("ps1", "ps0", directory=group.directory) as ps:
        assert ps.owners == ["ps1", "ps0", "directory"]
        assert (await ps.create(COUNTER, 1)).owner == "ps1"
        assert (await ps.create(COUNTER, 1, owner="ps0")).owner == "ps0"
    assert [len(agent.engine.registry) for agent in group.agents.values()] == [0, 0, 0]


async def test_the_owner_with_the_directory_may_be_one_of_them(group: OwnerGroup) -> None:
    await group.enter("ps0")
    async with tc.connect("ps0", "directory", directory=group.directory) as ps:
        assert ps.owners == ["ps0", "directory"]
        assert (await ps.create(COUNTER, 1, owner="directory")).owner == "directory"


async def test_any_owner_of_the_group_can_be_asked(group: OwnerGroup) -> None:
    first = await group.enter("ps0")
    await group.enter("ps1")
    async with tc.connect("ps1", directory=first.server.address) as ps:
        assert ps.owners == ["ps1", "ps0"]


async def test_one_that_is_asked_in_the_place_of_another_keeps_what_the_trainer_has_there(group: OwnerGroup) -> None:
    one, other = await group.enter("ps0"), await group.enter("ps1")
    async with tc.connect(directory=[each.server.address for each in (one, other)]) as ps:
        assert ps.others.directory is ps.sessions["ps0"]
        counter = await ps.create(COUNTER, 1, owner="ps1")
        await one.server.stop()
        await until(lambda: ps.sessions["ps0"].state == "disconnected")
        assert await ps.find_owners() == ["directory", "ps0", "ps1"]
        assert await counter.add(1) == 2
        assert ps.sessions["ps1"].losses == 0


async def test_one_that_answers_before_its_session_is_back_is_asked_in_that_session(group: OwnerGroup) -> None:
    one = await group.enter("ps0")
    addresses = [each.server.address for each in (group.keeper, one)]
    async with tc.connect(directory=addresses) as ps:
        counter = await ps.create(COUNTER, 1, owner="ps0")
        plugged = asyncio.Event()
        for name, session in ps.sessions.items():
            session._connector.connect = partial(_connected_once, plugged, session._connector)  # type: ignore[method-assign]
            group.agents[name].server.servicer.session_handlers.end_streams()
        await until(lambda: all(session.state == "disconnected" for session in ps.sessions.values()))
        assert await ps.others.asked() in ps.sessions.values()
        plugged.set()
        assert await counter.add(1) == 2
        assert [session.losses for session in ps.sessions.values()] == [0, 0]


@pytest.mark.parametrize("error", [tc.errors.UnavailableError, tc.errors.UnauthenticatedError])
async def test_one_that_was_given_up_is_asked_without_the_answers_of_before(
    group: OwnerGroup, error: type[tc.errors.PsError]
) -> None:
    one = await group.enter("ps0")
    async with tc.connect(directory=[each.server.address for each in (group.keeper, one)]) as ps:
        for name in group.agents:
            await ps.create(COUNTER, 1, owner=name)
        for session in list(ps.sessions.values()):
            await session.give_up(error("the network was out for too long"))
        assert await ps.find_owners() == ["directory", "ps0"]
        for name in group.agents:
            assert await (await ps.create(COUNTER, 5, owner=name)).add(1) == 6
        assert len({session.owner for session in ps.others._opened if session.state == "connected"}) == 2


async def _connected_once(plugged: asyncio.Event, connector: Connector) -> Connection:
    await plugged.wait()
    return await type(connector).connect(connector)


async def test_owners_that_have_not_come_yet_are_waited_for(group: OwnerGroup) -> None:
    connecting = asyncio.ensure_future(tc.connect("ps0", directory=group.directory).__aenter__())
    directory = group.keeper.engine.directory
    await until(lambda: directory._waits)
    assert not connecting.done()
    await group.enter("ps0")
    ps = await connecting
    assert ps.owners == ["ps0", "directory"]
    await ps.close()


async def test_the_error_for_an_unknown_name_lists_the_members(group: OwnerGroup) -> None:
    await group.enter("ps0")
    with pytest.raises(
        tc.errors.UnknownNameError, match="the group has no member 'ps9'; its members are: directory, ps0"
    ):
        await tc.connect("ps0", "ps9", directory=group.directory, connect_timeout=0.05)
    # Only the member itself is still connected to the keeper of the directory: nothing is left behind.
    keeper = group.keeper.engine.sessions
    await until(lambda: len(keeper) == 2)


async def test_without_await_it_is_the_same(group: OwnerGroup) -> None:
    await group.enter("ps0")

    def train() -> list[str]:
        with tc.connect("ps0", directory=group.directory) as ps:
            ps.create(COUNTER, 1)
            return list(ps.owners)

    assert await asyncio.to_thread(train) == ["ps0", "directory"]


@pytest.mark.parametrize(
    ("owners", "message"),
    [
        (("ps0", "ps1", "ps0"), "'ps0' is named twice"),
        (("127.0.0.1:50051",), "names of owners; '127.0.0.1:50051' is an address"),
    ],
)
def test_what_makes_no_sense_is_refused_at_once(owners: tuple[str, ...], message: str) -> None:
    with pytest.raises(tc.errors.InvalidArgumentError, match=message):
        tc.connect(*owners, directory="127.0.0.1:50051")


async def test_a_connector_is_no_name(owner: Server) -> None:
    with pytest.raises(tc.errors.InvalidArgumentError, match="names of owners instead of connectors"):
        tc.connect(MemoryConnector(owner.servicer.serve), directory=owner.address)


async def test_without_an_argument_they_are_those_of_the_variable(
    start_owner: StartOwner, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses = [(await start_owner(name)).address for name in ("ps1", "ps0")]
    monkeypatch.setenv("PS_ADDRESS", f"{addresses[0]}, {addresses[1]},")
    async with tc.connect() as ps:
        assert ps.owners == ["ps1", "ps0"]
    async with tc.connect(addresses[1]) as ps:
        assert ps.owners == ["ps0"]


@pytest.mark.parametrize("owner", [None, ("127.0.0.1", 50051), ["127.0.0.1:50051"]])
def test_what_is_no_address_is_named(owner: Any) -> None:
    with pytest.raises(tc.errors.InvalidArgumentError, match="takes addresses of owners one by one") as caught:
        tc.connect("127.0.0.1:50051", owner)
    assert str(caught.value).endswith(f"not {owner!r}")


def test_without_an_argument_and_a_variable_both_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PS_ADDRESS", raising=False)
    with pytest.raises(tc.errors.InvalidArgumentError) as caught:
        tc.connect()
    assert str(caught.value) == (
        "connect() needs the address of at least one owner, or directory= for all of a group. Without both it takes "
        "the addresses in the variable PS_ADDRESS, which `ps-service run` sets, and there is none"
    )
    monkeypatch.setenv("PS_ADDRESS", "here")
    with pytest.raises(
        tc.errors.InvalidArgumentError, match="in the variable PS_ADDRESS, 'here' is not the address of"
    ):
        tc.connect()
