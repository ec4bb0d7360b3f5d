"""Owners between which rows of tables move."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

import trainer_client as tc
from ps_service.engine import Engine
from ps_service.hosting.allowlist import AllowList
from ps_service.server import Server
from tests.conftest import StartOwner
from tests.integration.tables.moving import NAMES, Addresses
from trainer_client.client.portal import Portal


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
