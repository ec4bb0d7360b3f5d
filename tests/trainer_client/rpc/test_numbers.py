"""Tests that the directory is asked once which member has a number, within the time of the call."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from ps_service.engine import Engine
from ps_service.server import Server
from ps_wire.errors import DeadlineExceededError
from ps_wire.v1.operations_pb2 import LookupRequest
from tests.forking.process import Forking
from tests.owner_processes import forked_owners
from tests.waiting import until
from trainer_client.handles.other_owners import OtherOwners
from trainer_client.rpc.agent import Agent
from trainer_client.rpc.peers import GroupPeers
from trainer_client.rpc.planning import Plan
from trainer_client.session.settings import Settings


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str | int]:
    """The names and numbers that directories were asked for."""
    found: list[str | int] = []
    ask = OtherOwners.ask

    def heard(others: OtherOwners, directory: object, request: LookupRequest) -> object:
        found.append(request.id if request.HasField("id") else request.name)
        return ask(others, directory, request)  # type: ignore[arg-type]

    monkeypatch.setattr(OtherOwners, "ask", heard)
    return found


async def _member(stack: AsyncExitStack, name: str, rank: int, directory: str = "", size: int = 0) -> Agent:
    server = Server(Engine(name), "127.0.0.1:0")
    await server.start()
    member = Agent(server, Settings(connect_timeout=30.0, reconnect_timeout=0.1))
    stack.push_async_callback(member.leave, 0.0)
    await member.join(Plan(directory, rank, size), GroupPeers(member))
    return member


async def _owner(caller: Agent, who: str | int, timeout: float = 20.0) -> str:
    return (await asyncio.to_thread(caller.session, who, timeout)).owner


async def test_an_open_group_is_asked_once_for_a_number(stack: AsyncExitStack, asked: list[str | int]) -> None:
    keeper = await _member(stack, "keeper", 0)
    await _member(stack, "there", 7, keeper.address)
    caller = await _member(stack, "caller", 3, keeper.address)
    for who, name in ((7, "there"), (0, "keeper"), (3, "caller")):
        assert await _owner(caller, who) == name
        asked.clear()
        assert [await _owner(caller, who) for _ in range(2)] == [name, name] and caller.worker(who).name == name
        assert asked == []


async def test_a_number_is_known_when_the_member_was_found_by_its_name(
    stack: AsyncExitStack, asked: list[str | int]
) -> None:
    keeper = await _member(stack, "keeper", 0)
    await _member(stack, "there", 7, keeper.address)
    assert await _owner(keeper, "there") == "there"
    asked.clear()
    assert await _owner(keeper, 7) == "there" and asked == []


async def test_a_group_that_began_as_a_whole_is_not_asked_for_a_rank(
    stack: AsyncExitStack, asked: list[str | int]
) -> None:
    server = Server(Engine("first"), "127.0.0.1:0")
    await server.start()
    keeper = Agent(server, Settings(connect_timeout=30.0, reconnect_timeout=0.1))
    stack.push_async_callback(keeper.leave, 0.0)
    joined = asyncio.create_task(keeper.join(Plan("", 0, 2), GroupPeers(keeper)))
    other = await _member(stack, "second", 1, keeper.address, 2)
    await joined
    asked.clear()
    assert [other.worker(0).name, other.worker(1).name] == ["first", "second"] and asked == []
    with pytest.raises(RuntimeError, match="unknown member 2"):
        await asyncio.to_thread(other.worker, 2)


async def test_a_member_that_comes_under_the_number_of_one_that_has_left_is_found(stack: AsyncExitStack) -> None:
    keeper = await _member(stack, "keeper", 0)
    async with AsyncExitStack() as first:
        await _member(first, "there", 1, keeper.address)
        assert await _owner(keeper, 1) == "there"
    await until(lambda: keeper.client.sessions["there"].state != "connected")
    await _member(stack, "another", 1, keeper.address)
    assert await _owner(keeper, 1) == "another"
    await until(lambda: keeper.client.sessions["there"].state == "closed")
    # It was there with the number 1, and its session opens again.
    await _member(stack, "there", 2, keeper.address)
    assert [await _owner(keeper, who) for who in ("there", 1, 2)] == ["there", "another", "there"]


async def test_a_member_that_comes_again_with_its_number_is_found(stack: AsyncExitStack) -> None:
    keeper = await _member(stack, "keeper", 0)
    async with AsyncExitStack() as first:
        await _member(first, "there", 1, keeper.address)
        assert await _owner(keeper, 1) == "there"
    await until(lambda: keeper.client.sessions["there"].state == "closed")
    await _member(stack, "there", 1, keeper.address)
    assert await _owner(keeper, 1) == "there"


async def test_a_directory_that_does_not_answer_is_waited_for_as_long_as_the_call_may_take(
    forking: Forking, stack: AsyncExitStack
) -> None:
    start = await stack.enter_async_context(forked_owners(forking))
    keeper = await start("--name", "keeper", "--directory", "self")
    caller = await _member(stack, "caller", 3, keeper.address)
    os.kill(keeper.process.pid, signal.SIGSTOP)
    try:
        with pytest.raises(DeadlineExceededError, match=r"did not say within 0\.1 s who 9 is"):
            await _owner(caller, 9, 0.1)
        with pytest.raises(DeadlineExceededError, match=r"did not say within 0\.1 s who 'nobody' is"):
            await _owner(caller, "nobody", 0.1)
    finally:
        os.kill(keeper.process.pid, signal.SIGCONT)
    with pytest.raises(RuntimeError, match="unknown member 9"):
        await _owner(caller, 9, 20.0)
