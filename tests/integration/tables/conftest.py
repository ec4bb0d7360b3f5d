"""Owners between which rows of tables move."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest

import trainer_client as tc
from ps_service.engine import Engine
from ps_service.hosting.allowlist import AllowList
from ps_service.server import Server
from tests import table_models
from tests.allowed import allowed
from tests.conftest import StartOwner
from tests.integration.tables.moving import NAMES, Addresses
from trainer_client.client.portal import Portal
from trainer_client.rpc.agent import Agent
from trainer_client.rpc.peers import GroupPeers
from trainer_client.rpc.planning import Plan
from trainer_client.session.settings import Settings


@pytest.fixture
async def addresses(start_owner: StartOwner) -> Addresses:
    return [(await start_owner(name)).address for name in NAMES]


@pytest.fixture
async def trio(addresses: Addresses) -> AsyncIterator[tuple[tc.Client, tc.Client]]:
    """Two trainers of three owners."""
    async with tc.connect(*addresses) as one, tc.connect(*addresses) as other:
        yield one, other


@pytest.fixture(scope="module")
def servers_beside() -> Iterator[list[Server]]:
    """Three owners in the thread in which blocking clients have their event loop, for all tests of a module."""
    portal = Portal.acquire()
    servers = [portal.run(_started(name)) for name in NAMES]
    yield servers
    for each in servers:
        portal.run(each.stop())
    portal.release()


async def _started(name: str) -> Server:
    server = Server(Engine(name, AllowList([])), direct_port=0)
    await server.start()
    return server


@pytest.fixture
def owners_beside(servers_beside: list[Server]) -> list[str]:
    """Where these owners listen, for blocking clients. The objects of each test have names of their own."""
    return [each.address for each in servers_beside]


@pytest.fixture
def owner_beside(owners_beside: list[str]) -> str:
    """Where the first of these owners listens."""
    return owners_beside[0]


@dataclass
class Group:
    """Owners of a group, by name, in this process, and a trainer of all of them."""

    ps: tc.Client
    agents: dict[str, Agent]

    def requests(self, owner: str) -> int:
        """How many calls an owner has answered."""
        counts = self.agents[owner].engine.counters.operations()
        return counts["call"].durations.count if "call" in counts else 0


@pytest.fixture
async def group() -> AsyncIterator[Group]:
    """Two owners, of which the first keeps the directory."""
    agents: dict[str, Agent] = {}
    async with AsyncExitStack() as stack:
        for name in ("ps0", "ps1"):
            server = Server(Engine(name, allowed(table_models)), direct_port=0)
            await server.start()
            agent = agents[name] = Agent(server, Settings())
            stack.push_async_callback(agent.leave, 0.0)
            await agent.join(Plan("" if name == "ps0" else agents["ps0"].server.address), GroupPeers(agent))
        addresses = [each.server.address for each in agents.values()]
        yield Group(await stack.enter_async_context(tc.connect(*addresses)), agents)
