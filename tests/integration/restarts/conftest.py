"""The fixtures `owner` and `ps` with an owner that can be started again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import trainer_client as tc
from tests.integration.restarting import Owner


@pytest.fixture
async def owner(tmp_path: Path) -> AsyncIterator[Owner]:
    """An owner with a data directory, started."""
    async with Owner(tmp_path / "data") as owner:
        yield owner


@pytest.fixture
async def ps(owner: Owner) -> AsyncIterator[tc.Client]:
    """A trainer of `owner`."""
    async with tc.connect(owner.address) as client:
        yield client
