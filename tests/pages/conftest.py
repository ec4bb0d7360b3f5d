"""Starts what pages show, in the directory of the test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, aclosing
from pathlib import Path

import pytest

from tests.forking.process import AsyncForked, Forking

Start = Callable[..., Awaitable[AsyncForked]]


@pytest.fixture
async def start(forking: Forking, tmp_path: Path) -> AsyncIterator[Start]:
    """Starts processes in the directory of the test, and ends what is left of them."""
    async with AsyncExitStack() as stack:

        async def begin(*program: str, errors: bool = True, variables: Mapping[str, str] | None = None) -> AsyncForked:
            process = await forking.begin(*program, cwd=tmp_path, errors=errors, variables=variables)
            return await stack.enter_async_context(aclosing(process))

        yield begin
