"""Answers that are in the log, and not yet with their trainers when a checkpoint begins, are in that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import trainer_client as tc
from ps_service.requests.execution import Execution
from ps_service.sessions.reply_cache import Answer
from tests.integration.restarting import TALLY, Owner
from tests.integration.restarts.conftest import checkpoint
from tests.integration.restarts.test_restarting_unary import asked
from tests.integration.test_unary import call, create, decoded


@pytest.fixture
async def owner(tmp_path: Path) -> AsyncIterator[Owner]:
    async with Owner(tmp_path, durability="always") as made:
        yield made


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Is set when a thread has made the answer of the first call, which never goes further."""
    original, event = Execution._came, asyncio.Event()

    def came(self: Execution, answer: Answer) -> None:
        if event.is_set() or self.operation.name != "call":
            original(self, answer)
        else:
            event.set()

    monkeypatch.setattr(Execution, "_came", came)
    return event


async def test_a_call_counts_once(owner: Owner, ps: tc.Client, made: asyncio.Event) -> None:
    tally = await ps.create(TALLY, name="tally")
    first = asyncio.ensure_future(tally.add())
    await made.wait()
    await checkpoint(owner)
    await owner.crash()
    assert await first == 1
    assert await tally.add() == 2


async def test_a_unary_call_counts_once(owner: Owner, made: asyncio.Event) -> None:
    tally = (await asked(owner, "Create", create(TALLY, name="tally"), 1)).object.handle
    first = asyncio.ensure_future(asked(owner, "Call", call(tally, "add", 5), 2))
    await made.wait()
    await checkpoint(owner)
    await owner.crash()
    await asyncio.gather(first, return_exceptions=True)
    for number, value in ((2, 5), (3, 10)):
        assert decoded((await asked(owner, "Call", call(tally, "add", 5), number)).result) == value
