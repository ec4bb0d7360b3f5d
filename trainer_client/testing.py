"""Fixtures of pytest for the tests of programs that train on owners.

In a `conftest.py`: `from trainer_client.testing import ps`, or `async_ps` in tests that are coroutines. For owners
that import modules or keep data, write a fixture of your own around `tc.local(...)`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import trainer_client as tc

try:
    import pytest_asyncio
except ModuleNotFoundError:  # anyio's plugin runs fixtures of pytest that are asynchronous generators
    _fixture: Any = pytest.fixture
else:
    _fixture = pytest_asyncio.fixture

__all__ = ["async_ps", "ps"]


@pytest.fixture
def ps() -> Iterator[Any]:
    """A client whose calls block, with an owner of its own in this process: see `trainer_client.local`."""
    with tc.local() as client:
        yield client


@_fixture  # type: ignore[untyped-decorator]
async def async_ps() -> AsyncIterator[tc.Client]:
    """A client whose methods return awaitables, with an owner of its own in this process."""
    async with tc.local() as client:
        yield client
