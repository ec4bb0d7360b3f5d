"""Groups that are cut into two: only one side goes on, and never two owners of one name."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

import trainer_client as tc
from ps_service.engine import Engine
from ps_service.group import registers
from ps_service.group.keepers import KeeperAddress
from ps_service.server import Server
from ps_wire.errors import InvalidArgumentError, NameConflictError, UnavailableError
from ps_wire.limits import Limits
from tests.allowed import allowed
from tests.integration import restarting
from tests.integration.restarting import TALLY
from tests.lease_seconds import HALVES
from tests.ports import ReservedPort
from tests.waiting import until
from trainer_client.rpc.agent import Agent
from trainer_client.rpc.leased_entry import LeasedEntry
from trainer_client.rpc.peers import GroupPeers
from trainer_client.rpc.planning import Plan
from trainer_client.session.settings import Settings

LEASE_SECONDS = 3.0
"""For how long sessions outlive their streams. Longer than a trainer pauses between two attempts to come back."""


class Group(AsyncExitStack):
    """Owners in this process, of which three keep the directory. Those in `away` are cut off from all others; trainers
    reach all."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.ports = [ReservedPort() for _ in range(3)]
        self.keepers = tuple(KeeperAddress(f"keeper-{i}", each.address) for i, each in enumerate(self.ports))
        self.away: set[str] = set()
        self._patch = monkeypatch

    async def enter(
        self,
        name: str,
        listen: str = "127.0.0.1:0",
        folder: Path | None = None,
        keepers: tuple[KeeperAddress, ...] = (),
        seconds: float = 20.0,
    ) -> Agent:
        server = Server(
            Engine(name, allowed(restarting), data_dir=folder, limits=Limits(lease_seconds=LEASE_SECONDS)), listen
        )
        await server.start()
        agent = Agent(server, Settings(connect_timeout=5.0, reconnect_timeout=1.0), leased=True)
        self.push_async_callback(agent.stop)
        joining = agent.join(Plan(is_owner=True, keepers=keepers or self.keepers, seconds=seconds), GroupPeers(agent))
        task = asyncio.create_task(joining)
        await until(lambda: agent._mirroring is not None, 0.001)
        assert isinstance(agent._mirroring, LeasedEntry)
        ask = agent._mirroring._ask.ask

        async def refusing(address: str, *args: Any) -> Any:
            if (address in self.away) != (server.address in self.away):
                raise UnavailableError("the network is cut")
            return await ask(address, *args)

        self._patch.setattr(agent._mirroring._ask, "ask", refusing)
        await task
        return agent

    async def __aenter__(self) -> Group:
        await super().__aenter__()
        for each in self.ports:
            self.callback(each.close)
        entering = (self.enter(f"ps{i}", each.address) for i, each in enumerate(self.keepers))
        self.agents = list(await asyncio.gather(*entering))
        return self


@pytest.fixture
async def group(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Group]:
    for module, name, seconds in HALVES:
        monkeypatch.setattr(module, name, seconds)
    # A keeper waits when it starts for what it may have granted before: these have granted nothing.
    monkeypatch.setattr(registers, "WAIT_SECONDS", 0.0)
    async with Group(monkeypatch) as group:
        yield group


async def add(tally: Any, done: list[int]) -> None:
    """Adds again and again, and notes what is acknowledged."""
    while True:
        done.append(await tally.add(1))
        await asyncio.sleep(0.002)  # of no use more often, and others compute


async def is_ready(agent: Agent) -> bool:
    """Whether a health check says that the owner serves."""
    async with grpc.aio.insecure_channel(agent.server.address) as channel:
        reply = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
        return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)


def sure(agent: Agent) -> bool:
    return agent.engine.fence.is_sure()


async def test_every_owner_knows_every_other(group: Group) -> None:
    four = await group.enter("four")
    everyone = [*group.agents, four]
    expected = [(each.name, each.server.address, i) for i, each in enumerate(everyone)]
    for each in everyone:
        directory = each.engine.directory
        await asyncio.wrap_future(directory.gathered(4, 4).future)
        assert [(entry.name, entry.address, entry.id) for entry in directory.members()] == expected
        async with tc.connect(directory=each.server.address) as ps:
            assert ps.owners == ["ps0", "ps1", "ps2", "four"]
    workers = await asyncio.to_thread(four.workers)
    assert [each.id for each in workers] == [0, 1, 2, 3] and four.number == 3
    await four.leave(0.0)
    for each in group.agents:
        await until(lambda each=each: each.engine.directory.find("four") is None, 0.01)  # type: ignore[misc]
    with pytest.raises(NameConflictError, match="the name 'ps1' is not unique: the member at "):
        await group.enter("ps1")
    renamed = tuple(KeeperAddress(each.address, each.address) for each in group.keepers)
    for others in (group.keepers[::-1], renamed):
        with pytest.raises(InvalidArgumentError, match="give all owners of a group the same list"):
            await group.enter("five", keepers=others)
    async with Server(Engine("six")) as server:
        six = Agent(server, Settings(connect_timeout=5.0))
        with pytest.raises(InvalidArgumentError, match="the directory of this group has several keepers: give 'six'"):
            await six.join(Plan(group.keepers[0].address), GroupPeers(six))
        await six.stop()


async def test_one_that_is_cut_off_acknowledges_nothing_and_goes_on_afterwards(group: Group) -> None:
    agent = group.agents[0]
    async with tc.connect(agent.server.address) as ps:
        tally = await ps.create(TALLY, 0)
        group.away.add(agent.server.address)
        done: list[int] = []
        adding = asyncio.create_task(add(tally, done))
        await until(lambda: not sure(agent), 0.01)
        await until(lambda: ps.sessions["ps0"].state == "disconnected", 0.01)
        before, over = len(done), time.monotonic() + LEASE_SECONDS + 1.0
        with pytest.raises(tc.errors.UnavailableError, match="'ps0' does not reach a majority of the keepers"):
            await tc.connect(agent.server.address, connect_timeout=1.5)
        await until(lambda: agent.session_here.state == "closed", 0.05)
        await until(lambda: time.monotonic() > over, 0.05)
        assert len(done) == before > 0 and not await is_ready(agent)
        await until(lambda: all(map(sure, group.agents[1:])), 0.01)
        group.away.clear()
        await until(lambda: len(done) > before + 3, 0.01)
        adding.cancel()
        async with asyncio.timeout(50):
            while not await is_ready(agent):  # noqa: ASYNC110
                await asyncio.sleep(0.05)  # it is told a moment later
        assert done == list(range(1, len(done) + 1))
        assert ps.sessions["ps0"].losses == 0
        assert [each.name for each in (await ps.status()).members] == ["ps0", "ps1", "ps2"]
    assert [each.name for each in await asyncio.to_thread(agent.workers)] == ["ps0", "ps1", "ps2"]


async def test_a_later_start_takes_the_place_of_one_that_is_cut_off(group: Group, tmp_path: Path) -> None:
    old = await group.enter("four", folder=tmp_path / "four")
    async with tc.connect(old.server.address) as ps, AsyncExitStack() as stack:
        tally = await ps.create(TALLY, 0, name="tally")
        await tally.add(1)
        await ps.durable()
        group.away.add(old.server.address)
        # As on another machine, where it is not fenced. What is being written goes while it is copied.
        shutil.copytree(tmp_path / "four", tmp_path / "copy", ignore=shutil.ignore_patterns(".*"))
        entering = asyncio.create_task(group.enter("four", folder=tmp_path / "copy"))
        done: list[int] = []
        adding = asyncio.create_task(add(tally, done))
        new = await entering
        assert not sure(old)
        before = len(done)
        await until(lambda: sure(new), 0.001)
        other = await stack.enter_async_context(tc.connect("four", directory=[each.address for each in group.keepers]))
        kept = await (await other.attach("tally")).add(1)  # type: ignore[attr-defined]
        assert len(done) == before
        group.away.clear()
        why = f"a later start of the state of 'four' has taken its place, at {new.server.address}"
        with pytest.raises(tc.errors.ReplacedError, match=why):
            await adding
        assert old.engine.gate.why and not new.engine.gate.why
        assert await (await other.attach("tally")).add(0) == kept == 2  # type: ignore[attr-defined]


async def test_a_minority_does_not_acknowledge(group: Group) -> None:
    group.away.update(each.address for each in group.keepers[:2])
    # Two are cut off together, and are a majority: they go on.
    await until(lambda: not sure(group.agents[2]), 0.05)
    await until(lambda: sure(group.agents[0]) and sure(group.agents[1]), 0.05)
    group.away.clear()
    group.away.add(group.keepers[0].address)
    for each in group.agents[1:]:
        await until(lambda each=each: sure(each), 0.05)  # type: ignore[misc]
    await group.agents[1].stop()
    await until(lambda: not sure(group.agents[2]) and not sure(group.agents[0]), 0.05)
    with pytest.raises(UnavailableError, match=r"waits for a majority of the keepers.*: no answer"):
        await group.enter("four", seconds=2.0)
