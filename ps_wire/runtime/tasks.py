"""Ends tasks of an event loop."""

from __future__ import annotations

import asyncio
from typing import Any


async def end(task: asyncio.Task[Any]) -> None:
    """Cancels a task, and waits until it has ended. Raises the exception that it ended with, if that is another one."""
    # `await task` in a block that suppresses `CancelledError` would also suppress the cancellation of the caller.
    task.cancel()
    await asyncio.wait((task,))
    if not task.cancelled():
        task.result()
