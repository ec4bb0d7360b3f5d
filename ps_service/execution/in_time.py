"""Runs a function that may take longer than its caller waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def in_time(until: float, function: Callable[[], T]) -> T:
    """The result of a function, if it returns before a moment on the monotonic clock. If not, that is a `TimeoutError`,
    and its thread is left running."""
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(function())
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=run, name="ps-in-time", daemon=True).start()
    return result.result(max(until - time.monotonic(), 0.0))
