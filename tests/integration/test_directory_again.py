"""A directory that is gone and comes back hears of every member again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

import trainer_client as tc
from ps_service.engine import Engine
from ps_service.server import Server
from tests.forking.process import Forking
from tests.owner_processes import forked_owners
from tests.ports import ReservedPort
from tests.ps_service.test_server import Heard
from trainer_client.rpc.agent import Agent
from trainer_client.rpc.entry import Entry
from trainer_client.rpc.peers import GroupPeers
from trainer_client.rpc.planning import Plan
from trainer_client.session.settings import Settings


async def test_after_the_directory_was_killed_new_trainers_find_the_members(forking: Forking) -> None:
    async with forked_owners(forking) as start:
        keeper = await start("--name", "directory", "--directory", "self")
        await asyncio.gather(*(start("--name", name, "--directory", keeper.address) for name in ("ps0", "ps1")))
        async with tc.connect(keeper.address) as ps:
            before = [(each.name, each.id) for each in (await ps.status()).members]
        keeper.process.kill()
        await keeper.process.wait()
        await start("--name", "directory", "--directory", "self", "--listen", keeper.address)
        async with tc.connect("ps0", "ps1", directory=keeper.address, connect_timeout=30) as ps:
            assert [(await ps.status(name)).owner for name in ("ps0", "ps1")] == ["ps0", "ps1"]
            assert [(each.name, each.id) for each in (await ps.status("directory")).members] == before
        async with tc.connect(directory=keeper.address, connect_timeout=30) as ps:
            assert await ps.find_owners(3) == [name for name, _ in before]


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


async def _member(
    stack: AsyncExitStack, name: str, directory: str = "", listen: str = "127.0.0.1:0", rank: int | None = None
) -> Agent:
    server = Server(Engine(name), listen)
    await server.start()
    member = Agent(server, Settings(connect_timeout=0.2, reconnect_timeout=0.1))
    stack.push_async_callback(member.leave, 0.0)
    await member.join(Plan(directory, rank), GroupPeers(member))
    return member


def _forget(keeper: Agent, member: Agent) -> None:
    """Ends the session of a member, as when its lease has run out while a cable was out."""
    session_handlers = keeper.server.servicer.session_handlers
    session_handler = session_handlers.open(member.client.trainer)
    session_handler.stream.greeted()
    session_handlers.end(session_handler)


async def test_a_member_that_had_given_the_directory_up_comes_back_to_it(stack: AsyncExitStack) -> None:
    port = stack.enter_context(ReservedPort())
    keeper = await _member(stack, "directory", listen=port.address)
    member = await _member(stack, "ps0", keeper.server.address)
    session = member.directory
    async with Heard("trainer_client.rpc", lambda said: "ps0 is not in the directory at" in said):
        await keeper.server.stop()
    assert session.state == "closed"
    async with asyncio.timeout(60):
        again = await _member(stack, "directory", listen=keeper.server.address)
        await asyncio.wrap_future(again.engine.directory.awaited("ps0").future)
    assert member.directory is not session
    assert again.engine.directory.find("ps0") is not None


@pytest.mark.parametrize("rank", [None, 1])
async def test_a_member_whose_number_is_taken_gets_another_unless_it_has_asked_for_that_one(
    stack: AsyncExitStack, rank: int | None
) -> None:
    keeper = await _member(stack, "directory")
    member = await _member(stack, "ps0", keeper.server.address, rank=rank)
    directory = keeper.engine.directory
    async with Heard("trainer_client.rpc", lambda said: "number 1 belongs to 'newcomer'" in said):
        _forget(keeper, member)
        # As when the directory has begun anew, and this one has come first.
        directory.enter(keeper.engine.sessions.open(b"n" * 16).trainer, "newcomer", "there:1", 1)
    if rank is not None:
        directory.leave(b"n" * 16)
    async with asyncio.timeout(60):
        entry = await asyncio.wrap_future(directory.awaited("ps0").future)
    assert entry.id == (2 if rank is None else 1)


@pytest.mark.parametrize("fails", [False, True])
async def test_a_member_whose_session_was_forgotten_enters_again(
    stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    keeper = await _member(stack, "directory")
    member = await _member(stack, "ps0", keeper.server.address)
    make, failures = Entry.make, [ZeroDivisionError()] if fails else []

    async def fails_once(*args: Any) -> Any:
        if failures:
            raise failures.pop()
        return await make(*args)

    monkeypatch.setattr(Entry, "make", fails_once)
    _forget(keeper, member)
    assert keeper.engine.directory.find("ps0") is None
    async with asyncio.timeout(60):
        entry = await asyncio.wrap_future(keeper.engine.directory.awaited("ps0").future)
    assert entry.id == member.member.id and not failures
