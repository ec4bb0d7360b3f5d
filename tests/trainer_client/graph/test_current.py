"""Tests that each task and thread has its own current context."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from trainer_client.graph.current import current_context, entered, inside

CONTEXT, OTHER = cast("Any", SimpleNamespace(finished=False)), cast("Any", SimpleNamespace(finished=False))


def test_a_block_begins_and_ends() -> None:
    token = entered.set(CONTEXT)
    assert current_context() is CONTEXT
    entered.reset(token)
    assert current_context() is None


def test_an_inner_block_gives_the_outer_one_back_also_after_an_error() -> None:
    with inside(CONTEXT):
        with pytest.raises(ZeroDivisionError), inside(OTHER):
            assert current_context() is OTHER
            raise ZeroDivisionError
        assert current_context() is CONTEXT
        with inside(None):
            assert current_context() is None
        assert current_context() is CONTEXT
    assert current_context() is None


async def test_tasks_do_not_see_each_others_contexts() -> None:
    is_inside = asyncio.Event()

    async def enters() -> None:
        entered.set(CONTEXT)
        is_inside.set()

    task = asyncio.create_task(enters())
    await is_inside.wait()
    assert current_context() is None
    await task


def test_a_context_that_a_step_has_ended_is_current_no_more() -> None:
    with inside(cast("Any", SimpleNamespace(finished=True))):
        assert current_context() is None


def test_another_thread_is_in_no_context() -> None:
    seen: list[Any] = []
    with inside(CONTEXT):
        thread = threading.Thread(target=lambda: seen.append(current_context()))
        thread.start()
        thread.join()
    assert seen == [None]
