"""Tests that a member is found by others, and that an owner that cannot join a group stops."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from ps_service.durability.store import Store
from ps_service.engine import Engine
from ps_service.server import Server
from ps_wire.errors import InvalidArgumentError, NameConflictError, UnavailableError
from ps_wire.v1.operations_pb2 import HistoryRequest, MembersRequest
from trainer_client.rpc.current import agent, has_agent, set_agent
from trainer_client.rpc.joining import join
from trainer_client.rpc.peers import GroupPeers
from trainer_client.rpc.planning import planned
from trainer_client.session import presence
from trainer_client.session.settings import Settings


@pytest.fixture
async def keeper() -> AsyncIterator[Server]:
    """An owner that keeps the directory of a group."""
    async with Server(Engine("keeper")) as server:
        yield server


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    yield
    set_agent(None)


async def test_a_member_is_in_the_directory_and_is_the_agent(keeper: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "trainer_client")
    server = Server(Engine("ps1"))
    await server.start()
    member = await join(server, Settings(), keeper.address, "elsewhere:1", 7)
    (entry,) = keeper.engine.directory.members()
    assert (entry.name, entry.address, entry.id) == ("ps1", "elsewhere:1", 7)
    assert caplog.messages == [f"ps1 has joined the group with its directory at {keeper.address}, as number 7"]
    assert agent() is member
    assert not server.engine.membership.peers.keeps_directory
    await member.leave(0.0)
    assert keeper.engine.directory.members() == []


async def test_without_a_directory_the_owner_keeps_one_itself() -> None:
    server = Server(Engine("ps1"))
    await server.start()
    member = await join(server, Settings())
    (entry,) = server.engine.directory.members()
    assert (entry.name, entry.address, entry.id) == ("ps1", server.address, 0)
    assert server.engine.membership.peers.keeps_directory
    assert isinstance(server.engine.membership.peers, GroupPeers)
    await member.leave(0.0)


async def test_a_member_asks_others_what_needs_no_session(keeper: Server) -> None:
    server = Server(Engine("ps1"))
    await server.start()
    member = await join(server, Settings(), keeper.address)
    peers = server.engine.membership.peers
    assert [each.name for each in await peers.members(20.0)] == ["ps1"]
    sessions = len(keeper.engine.sessions)
    keeper._sampler.sample()
    reply = await peers.ask(keeper.address, "History", HistoryRequest(), 20.0)
    assert (reply.owner, len(reply.samples) > 0) == ("keeper", True)
    assert len(keeper.engine.sessions) == sessions
    await keeper.stop()
    for method, request in (("History", HistoryRequest()), ("Members", MembersRequest())):
        with pytest.raises(UnavailableError, match=f"the owner at {keeper.address} does not answer"):
            await peers.ask(keeper.address, method, request, 20.0)
    with pytest.raises(UnavailableError, match="does not answer"):
        await peers.members(20.0)
    await member.leave(0.0)


async def test_an_owner_whose_name_is_taken_stops_without_a_checkpoint(keeper: Server, tmp_path: Path) -> None:
    keeper.engine.directory.enter(keeper.engine.sessions.open(b"s" * 16).trainer, "ps1", "elsewhere:1")
    server = Server(Engine("ps1", data_dir=tmp_path))
    await server.start()
    with pytest.raises(NameConflictError, match="the name 'ps1' is not unique"):
        await join(server, Settings(), keeper.address)
    assert not has_agent()
    assert server.state == "draining"
    with closing(Store(tmp_path)) as store:
        assert store.newest() is None


async def test_a_directory_that_does_not_answer_is_told(
    keeper: Server, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presence, "_QUIET_SECONDS", 0.0)
    caplog.set_level(logging.INFO, "trainer_client")
    await keeper.stop()
    server = Server(Engine("ps1"))
    await server.start()
    with pytest.raises(UnavailableError):
        await join(server, Settings(connect_timeout=0.5), keeper.address)
    # One line, however often it is tried.
    (line,) = caplog.messages
    assert line.startswith(f"the owner at {keeper.address} has not been reached since")
    assert not has_agent()
    assert server.state == "draining"


def test_a_program_joins_a_directory_that_one_owner_keeps() -> None:
    with pytest.raises(InvalidArgumentError, match="'a:1,b:1,c:1' is not one address"):
        planned("", -1, 0, "a:1,b:1,c:1", "", 1.0)
