"""A task that is ended has ended, and says how; the cancellation of the caller is not lost."""

from __future__ import annotations

import asyncio

import pytest

from ps_wire.runtime import tasks


async def test_a_task_has_ended_afterwards() -> None:
    ended = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.set()

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    await tasks.end(task)
    assert ended.is_set() and task.cancelled()
    await tasks.end(task)  # once more


async def test_another_error_of_the_task_is_raised() -> None:
    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ZeroDivisionError

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    with pytest.raises(ZeroDivisionError):
        await tasks.end(task)


async def test_the_caller_can_be_cancelled_meanwhile() -> None:
    may_end = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await may_end.wait()

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    caller = asyncio.create_task(tasks.end(task))
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task
