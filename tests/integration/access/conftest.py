"""Fixtures: a file of tokens, and an owner that reads it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ps_service.server import Server
from tests.integration.access.identities import Identities


@pytest.fixture
def identities(tmp_path: Path) -> Identities:
    return Identities(tmp_path)


@pytest.fixture
async def guarded(identities: Identities) -> AsyncIterator[Server]:
    """An owner with tokens."""
    async with identities.serving() as server:
        yield server
