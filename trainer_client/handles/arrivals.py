"""Waits for results among the arguments of a call."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from ps_wire.codec.trees import leaves_in
from ps_wire.errors import DeadlineExceededError, PsError, caused
from ps_wire.runtime.scopes import LEAST_SECONDS_LEFT
from trainer_client.pending import Pending

Left = Callable[[], "float | None"]
"""Returns the seconds that are left; None is no limit."""


def seconds_left(seconds: float | None) -> Left:
    """Counts seconds down from now."""
    if seconds is None:
        return lambda: None
    end = time.monotonic() + seconds
    return lambda: max(end - time.monotonic(), LEAST_SECONDS_LEFT)


async def all_there(value: Any, stays: Callable[[Pending[Any]], bool], left: Left) -> None:
    """Waits until results in a value are here, but for those that stay. Calls that only this needs end with the task.

    Raises `DeadlineExceededError`, or the error of a call that has failed, which it names.
    """
    found = [leaf for leaf in leaves_in(value) if isinstance(leaf, Pending)]
    # First of all, because those that are not sent yet may stay where they are.
    awaited = [each for each in found if not stays(each)]
    loop = asyncio.get_running_loop()
    waits: list[tuple[Pending[Any], Callable[[], Any]]] = []
    arrived = asyncio.Semaphore(0)
    for each in awaited:
        if not each.settled:
            wake: Callable[[], Any] = partial(loop.call_soon_threadsafe, arrived.release)
            waits.append((each, wake))
            each.on_done(wake)
    try:
        async with asyncio.timeout(left()):
            for _ in waits:
                await arrived.acquire()
                _check(awaited)
    except (TimeoutError, asyncio.CancelledError) as error:
        for each, wake in waits:
            each.forget(wake)
        if isinstance(error, DeadlineExceededError) or not isinstance(error, TimeoutError):
            raise
        raise DeadlineExceededError("call: the results among its arguments did not come in time") from None
    _check(awaited)


def _check(pendings: list[Pending[Any]]) -> None:
    """Raises the error of the first that has failed."""
    for each in pendings:
        error = each.error
        if isinstance(error, PsError):
            for failed in filter(None, (other.failure for other in pendings)):
                failed.read()  # the error below tells of it, and as with `asyncio.gather`, of the others nobody asks
            raise caused(error, f"{each.title}, whose result is an argument of this call, has failed")
