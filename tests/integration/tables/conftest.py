"""Owners between which rows of tables move."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

import trainer_client as tc
from tests.conftest import StartOwner
from tests.integration.tables.moving import NAMES, Addresses


@pytest.fixture
async def addresses(start_owner: StartOwner) -> Addresses:
    return [(await start_owner(name)).address for name in NAMES]


@pytest.fixture
async def trio(addresses: Addresses) -> AsyncIterator[tuple[tc.Client, tc.Client]]:
    """Two trainers of three owners."""
    async with tc.connect(*addresses) as one, tc.connect(*addresses) as other:
        yield one, other
