"""Gives references back to an owner, those of one turn of the event loop in one request."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from ps_wire.runtime import forks

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable


class Releases:
    """Collects references to give back.

    Args:
        loop: The session's event loop.
        send: Sends the ids of their objects to the owner; called on the loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, send: Callable[[list[str]], None]) -> None:
        self._loop = loop
        self._send = send
        self._object_ids: deque[str] = deque()
        self._begun = False

    def add(self, object_id: str) -> None:
        """Gives a reference back soon. May be called from any thread, also by the garbage collector."""
        if forks.is_foreign(self._loop):
            # The parent process has the handle, too, and gives the reference back.
            return
        self._object_ids.append(object_id)
        if not self._begun:
            self._begun = True
            # The loop may be closed; then the session has ended, and all its references were given back.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._flush)

    def _flush(self) -> None:
        self._begun = False
        object_ids = [self._object_ids.popleft() for _ in range(len(self._object_ids))]
        if object_ids:
            self._send(object_ids)
