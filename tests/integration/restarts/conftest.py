"""The fixtures `owner` and `ps` with an owner that can be started again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from pathlib import Path

import pytest

import trainer_client as tc
from ps_service.durability.live import part_writing, parts
from ps_service.durability.live.checkpoint import LiveCheckpoint
from ps_service.durability.manifest import Manifest
from ps_service.tables.row_steps import RowSteps
from tests.integration.restarting import Owner

Action = Callable[[], Awaitable[object]]


async def checkpoint(owner: Owner) -> Path:
    """Has an owner write a checkpoint while it goes on. Returns its folder."""
    return Path((await asyncio.to_thread(owner.server.engine.checkpoints.write)).folder)


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


@pytest.fixture(autouse=True)
def steps_of_rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the log take steps of rows as gradients, though the rows of tests are so small that they would be less; with
    `rows` as these."""
    if getattr(request, "param", "gradients") == "gradients":
        monkeypatch.setattr(RowSteps, "nbytes", lambda *_: 0)


# For tests in which it matters what the log has of a step.
as_both = pytest.mark.parametrize("steps_of_rows", ["gradients", "rows"], indirect=True)


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of a few rows."""
    for module in (parts, part_writing):
        monkeypatch.setattr(module, "PIECE_BYTES", 1024)


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> Callable[[Action], None]:
    """Sets what happens after each turn of a checkpoint."""
    original = LiveCheckpoint.turns

    def set_action(action: Action) -> None:
        loop = asyncio.get_running_loop()

        async def run() -> None:
            await action()

        def turns(self: LiveCheckpoint, folder: Path) -> Generator[None, None, Manifest]:
            made = original(self, folder)
            while True:
                try:
                    next(made)
                except StopIteration as end:
                    manifest: Manifest = end.value
                    return manifest
                asyncio.run_coroutine_threadsafe(run(), loop).result(60)
                yield

        monkeypatch.setattr(LiveCheckpoint, "turns", turns)

    return set_action
