"""A background thread with an event loop, for programs that have none."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from typing import Any, ClassVar, TypeVar

from ps_wire.runtime import forks

T = TypeVar("T")


class Portal:
    """Runs coroutines in the one background loop of this process.

    gRPC for Python wants one event loop per process, so all blocking clients share one portal; its thread ends with the
    last of them.
    """

    _lock: ClassVar[threading.Lock] = threading.Lock()
    _shared: ClassVar[Portal | None] = None

    def __init__(self) -> None:
        self._users = 0
        self.loop = _new_loop()
        forks.belongs_here(self.loop)
        self._thread = threading.Thread(target=self._run, name="trainer-client", daemon=True)

    @classmethod
    def acquire(cls) -> Portal:
        """The portal of this process. Call `release` when it is no longer needed."""
        with cls._lock:
            if cls._shared is None:
                cls._shared = cls()
                cls._shared._thread.start()
            cls._shared._users += 1
            return cls._shared

    @property
    def is_foreign(self) -> bool:
        """Whether it belongs to the parent of this forked process."""
        return forks.is_foreign(self.loop)

    def release(self) -> None:
        """Ends the thread if this was the last user of the portal; tasks that still run in it are cancelled."""
        if self.is_foreign:
            return
        with self._lock:
            self._users -= 1
            if self._users:
                return
            Portal._shared = None
        self.run(_cancel_everything())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine on the loop, waits, and returns its result.

        Raises:
            RuntimeError: This is the portal's own thread.
            ClosedError: The portal belongs to the parent of this forked process.
        """
        if self.is_foreign:
            work.close()
            raise forks.refusal()
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("a blocking call inside the client's own event loop would wait for itself")
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()


def _forget_parent() -> None:
    """Resets the class in a forked child, so that the first client there makes a new portal."""
    Portal._lock = threading.Lock()
    Portal._shared = None


os.register_at_fork(after_in_child=_forget_parent)


async def _cancel_everything() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
