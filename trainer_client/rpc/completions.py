"""Completes futures of torch in threads of their own, because torch calls their callbacks in the same thread."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

_PATIENCE_SECONDS: Final = 0.02
"""How long one completion may take before another thread goes on with the next ones."""


class Completions:
    """Runs completions, one after the other, in a thread that stays idle between them. A callback may wait for other
    futures that have arrived: if it takes long, another thread completes these."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[Callable[[], None]] = deque()
        # A thread without work waits for it; further ones end.
        self._woken = threading.Lock()
        self._woken.acquire()
        self._is_idle = False
        self._running = 0
        self._begun = 0
        self._seen = 0
        # The event loop that will look whether the completions go on.
        self._looks: asyncio.AbstractEventLoop | None = None

    def add(self, complete: Callable[[], None], loop: asyncio.AbstractEventLoop) -> None:
        """Runs a completion soon, from any thread; it must not raise. The loop looks whether those before it go on."""
        with self._lock:
            self._waiting.append(complete)
            looks = True
            if self._running:
                looks = self._looks is loop
                self._looks = loop
            else:
                self._go_on()
        if not looks:
            self._look_later(loop)

    def _go_on(self) -> None:
        self._running += 1
        if self._is_idle:
            self._is_idle = False
            self._woken.release()
            return
        try:
            threading.Thread(target=self._run, name="ps-completions", daemon=True).start()
        except RuntimeError:  # the interpreter ends, and starts no more threads
            self._running -= 1

    def _run(self) -> None:
        while True:
            with self._lock:
                complete = self._waiting.popleft() if self._waiting else None
                if complete is not None:
                    self._begun += 1
                else:
                    self._running -= 1
                    if self._is_idle:
                        return
                    self._is_idle = True
            if complete is not None:
                complete()
            else:
                self._woken.acquire()

    def _look_later(self, loop: asyncio.AbstractEventLoop) -> None:
        with suppress(RuntimeError):  # the loop is closed
            if asyncio._get_running_loop() is loop:
                loop.call_later(_PATIENCE_SECONDS, self._look, loop)
            else:
                loop.call_soon_threadsafe(loop.call_later, _PATIENCE_SECONDS, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            waits = bool(self._waiting)
            self._looks = loop if waits else None
            if waits and self._begun == self._seen:
                self._go_on()
            self._seen = self._begun
        if waits:
            self._look_later(loop)


_completions = Completions()


def complete_later(complete: Callable[[], None], loop: asyncio.AbstractEventLoop | None) -> None:
    """Runs a completion in another thread; it must not raise. May be called from any thread."""
    if loop is not None:
        _completions.add(complete, loop)
    else:
        threading.Thread(target=complete, name="ps-completion", daemon=True).start()


def _forked() -> None:
    # A forked child has none of its parent's threads.
    global _completions
    _completions = Completions()


os.register_at_fork(after_in_child=_forked)
