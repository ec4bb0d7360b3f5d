"""Answers that are in the log, and not yet with their trainers when a checkpoint begins, are in that."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import trainer_client as tc
from ps_service.durability import keeper
from ps_service.durability.log.owners_log import OwnersLog
from ps_service.requests.execution import Execution
from ps_service.rpc import session_handler
from ps_service.sessions.reply_cache import Answer
from tests.integration.restarting import TALLY, Owner
from tests.integration.restarts.conftest import checkpoint
from tests.integration.restarts.test_restarting_unary import asked
from tests.integration.support import bits
from tests.integration.test_unary import call, create, decoded


@pytest.fixture
async def owner(tmp_path: Path) -> AsyncIterator[Owner]:
    async with Owner(tmp_path, durability="always") as made:
        yield made


@pytest.fixture
def operation() -> str:
    return "call"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, operation: str) -> asyncio.Event:
    """Is set when a thread has made the answer of the first request of an operation, which never goes further."""
    original, event = Execution._came, asyncio.Event()

    def came(self: Execution, answer: Answer) -> None:
        if event.is_set() or self.operation.name != operation:
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


def references(owner: Owner) -> list[int]:
    """How many references the only trainer has to each object."""
    engine = owner.server.engine
    (session,) = engine.sessions.all()
    return list(engine.registry.held_by(session.trainer).values())


async def test_a_reference_that_is_given_while_a_checkpoint_begins_counts_once(
    owner: Owner, ps: tc.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record of it is behind the position of the checkpoint, whose books have it already."""
    kept, original = [await ps.module(nn.Linear, 2, 1, name="net")], keeper.read_on_loop
    loop = asyncio.get_running_loop()

    async def attach() -> None:
        kept.append(await ps.attach("net"))

    def read(*args: Any) -> Any:
        asyncio.run_coroutine_threadsafe(attach(), loop).result(60)
        return original(*args)

    monkeypatch.setattr(keeper, "read_on_loop", read)
    await checkpoint(owner)
    assert references(owner) == [len(kept)]
    await owner.crash()
    assert bits([await each.state_dict() for each in kept]) and references(owner) == [len(kept)]


@pytest.mark.parametrize("operation", ["attach"])
async def test_an_answer_that_is_just_being_written_is_in_the_checkpoint(
    owner: Owner, ps: tc.Client, made: asyncio.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread has appended the record, and has not noted where. The request is not executed again."""
    monkeypatch.setattr(session_handler, "run_inline", lambda *_: None)
    kept, appended, has_tried = [await ps.module(nn.Linear, 2, 1, name="net")], threading.Event(), threading.Event()
    append, read = OwnersLog.append_with_drawn, keeper.read_on_loop

    def appending(self: OwnersLog, *args: Any) -> int:
        position = append(self, *args)
        appended.set()
        has_tried.wait()
        return position

    def reading(*args: Any) -> Any:
        try:
            return read(*args)
        finally:
            has_tried.set()

    monkeypatch.setattr(OwnersLog, "append_with_drawn", appending)
    monkeypatch.setattr(keeper, "read_on_loop", reading)
    attaching = asyncio.ensure_future(ps.attach("net"))
    await asyncio.to_thread(appended.wait)
    await checkpoint(owner)
    await made.wait()
    await owner.crash()
    kept.append(await attaching)
    assert references(owner) == [len(kept)]
