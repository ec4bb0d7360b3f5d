"""Owners and trainers that all tests of a file share, for tests that are content with new objects."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

import trainer_client as tc
from ps_service.server import Server
from tests import training
from tests.integration import odd_training


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def both() -> AsyncIterator[tc.Client]:
    """A trainer of both ps0 and ps1."""
    async with training.training("ps0", "ps1") as (_, ps):
        yield ps


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def unusual() -> AsyncIterator[tuple[Server, tc.Client]]:
    """An owner of modules that are unusual, and a trainer."""
    async with odd_training.training() as found:
        yield found
