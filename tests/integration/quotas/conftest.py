"""Fixtures: a file of quotas, and an owner that reads it and knows two teams."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ps_service.quotas.quota import QuotaFile
from ps_service.server import Server
from tests.integration.access.identities import Identities

QUOTAS = """
[default]
sessions = 2

[identity.anna]
sessions = 3
contexts = 2
context_seconds = 3600
held_bytes = 100_000
objects = 4
object_bytes = 1_000_000
table_rows = 8

[namespace.default]
objects = 6

[all]
sessions = 5
streams = 3
"""


@pytest.fixture
def identities(tmp_path: Path) -> Identities:
    made = Identities(tmp_path)
    for name in ("anna", "bert"):
        made.add(name, "admin")
    return made


@pytest.fixture
def quota_file(tmp_path: Path) -> QuotaFile:
    path = tmp_path / "quotas.toml"
    path.write_text(QUOTAS)
    return QuotaFile(path)


@pytest.fixture
async def limited(identities: Identities, quota_file: QuotaFile) -> AsyncIterator[Server]:
    """An owner with tokens and quotas."""
    async with identities.serving(quotas=quota_file) as server:
        yield server
