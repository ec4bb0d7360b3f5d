"""A background thread with an event loop, for programs that have none."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar, Final, TypeVar

from ps_wire.errors import ClosedError
from ps_wire.runtime import forks

T = TypeVar("T")

_END_SECONDS: Final = 5.0
"""How long the exit of the interpreter waits for the loop, which a callback of the program may hold up."""


class Portal:
    """Runs coroutines in the one background loop of this process.

    gRPC wants one event loop per process, and each further one takes memory for good, so all blocking clients share
    this one, and it stays when the last of them is closed. It ends when the interpreter exits, also with open clients:
    a thread that comes from C++ code of gRPC into an interpreter that is gone would end the process with an abort.
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
        """Cancels the tasks that still run in it if this was its last user. The thread waits for the next one."""
        if self.is_foreign:
            return
        cancelled = threading.Event()
        with self._lock:
            self._users -= 1
            if self._users or self.loop.is_closed():
                return
            # With the lock, so that no task of the next user is among them.
            self.loop.call_soon_threadsafe(self._cancel_tasks, cancelled.set)
        if threading.current_thread() is not self._thread:
            cancelled.wait()

    def _cancel_tasks(self, then: Callable[[], None]) -> None:
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        asyncio.gather(*tasks, return_exceptions=True).add_done_callback(lambda _: then())

    @classmethod
    def end(cls) -> None:
        """Ends the portal of this process, if there is one. What its users still ask of it is a `ClosedError`."""
        with cls._lock:
            ended, cls._shared = cls._shared, None
            if ended is None:
                return
            ended.loop.call_soon_threadsafe(ended._cancel_tasks, ended.loop.stop)
        ended._thread.join(_END_SECONDS)
        if not ended._thread.is_alive():
            with cls._lock:
                ended.loop.close()

    def run(self, work: Coroutine[Any, Any, T], *, ends_early: bool = False) -> T:
        """Runs a coroutine on the loop, waits, and returns its result. If it `ends_early`, Ctrl-C cancels it.

        Raises `RuntimeError` in the portal's own thread, and `ClosedError` in a fork or if the interpreter exits.
        """
        if self.is_foreign:
            work.close()
            raise forks.refusal()
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("a blocking call inside the client's own event loop would wait for itself")
        try:
            running = asyncio.run_coroutine_threadsafe(work, self.loop)
        except RuntimeError:
            work.close()
            raise ClosedError("this client is closed, and so is its event loop") from None
        try:
            return running.result()
        except KeyboardInterrupt:
            if ends_early:
                running.cancel()
            raise

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()


def _forget_parent() -> None:
    """Resets the class in a forked child, so that the first client there makes a new portal."""
    Portal._lock = threading.Lock()
    Portal._shared = None


os.register_at_fork(after_in_child=_forget_parent)
atexit.register(Portal.end)


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
