"""Holds what an owner is about to do, as if no thread were free for it, until a test lets it begin."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Self

import pytest

from ps_service.requests.operations import OPERATIONS
from tests.waiting import SECONDS, until


class Held:
    """A function whose first chosen call does not begin before `go_on`. It must not be called on the event loop.

    Args:
        function: What is called.
        chosen: Whether a call, by its arguments, is the one.
    """

    def __init__(self, function: Callable[..., Any], chosen: Callable[..., bool] = lambda *_: True) -> None:
        self._function, self._chosen = function, chosen
        self._lock = threading.Lock()
        self._come, self._may_begin, self._over = threading.Event(), threading.Event(), threading.Event()

    def __call__(self, *args: Any) -> Any:
        with self._lock:
            is_held = not self._come.is_set() and self._chosen(*args)
            if is_held:
                self._come.set()
        if not is_held:
            return self._function(*args)
        assert self._may_begin.wait(SECONDS)
        try:
            return self._function(*args)
        finally:
            self._over.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._may_begin.set()

    async def has_come(self) -> None:
        """Waits until it is called."""
        await until(self._come.is_set)

    async def go_on(self) -> None:
        """Lets it begin, and waits for its end."""
        self._may_begin.set()
        assert await asyncio.to_thread(self._over.wait, SECONDS)


def held_request(
    monkeypatch: pytest.MonkeyPatch, operation: str, chosen: Callable[[Any], bool] = lambda request: True
) -> Held:
    """Holds the first chosen request of an operation, whose requests run in threads then, on all owners."""
    known = OPERATIONS[operation]
    handle = Held(known.handle, lambda ctx, request, reply: chosen(request))
    monkeypatch.setitem(OPERATIONS, operation, replace(known, handle=handle, expected_seconds=None))
    return handle


def held_method(monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> Held:
    """Holds the first call of a method of an object."""
    method = Held(getattr(owner, name))
    monkeypatch.setattr(owner, name, method)
    return method
