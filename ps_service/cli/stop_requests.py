"""What asks an owner to stop: signals, and the end of its standard input."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

_log = logging.getLogger(__name__)

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

_INSISTENT: Final = 3
"""The number of the signal that ends the process at once. A second one is often the same request: a terminal sends
Ctrl-C to all processes of a job, and the one that started the owner passes it on."""


class StopRequests:
    """Takes the requests to stop that reach the process of an owner; made on its event loop.

    SIGQUIT is left to the system, which ends the process even while the event loop is blocked; also where whoever
    started it ignored the signal, as a shell does for what runs in the background of a script.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._came = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._signals = 0
        self._hear: Callable[[str], object] | None = None
        signal.signal(signal.SIGQUIT, signal.SIG_DFL)
        for number in _SIGNALS:
            self._loop.add_signal_handler(number, self._take_signal, number)

    @property
    def came(self) -> bool:
        """Whether the owner is to stop."""
        return self._came.is_set()

    async def wait(self) -> None:
        """Waits for the first request."""
        await self._came.wait()

    def watch_input(self, hear: Callable[[str], object] | None = None) -> None:
        """Takes the end of standard input for a request. `hear` gets each line before; without it they are dropped.
        Raises `OSError` if standard input is closed."""
        if sys.stdin is None:
            raise OSError("standard input is closed, and --until-eof waits for its end")
        self._hear = hear
        # In a thread: an event loop cannot wait for a file, or for /dev/null.
        threading.Thread(target=self._read, args=(sys.stdin.fileno(),), name="ps-stdin", daemon=True).start()

    def _read(self, descriptor: int) -> None:
        with suppress(OSError):  # such as that of a terminal that is gone
            rest = b""
            while came := os.read(descriptor, 4096):
                if self._hear is not None:
                    *lines, rest = (rest + came).split(b"\n")
                    for line in lines:
                        self._tell(self._hear, line.decode(errors="replace"))
        self._tell(self._take, "the end of standard input")

    def _tell(self, take: Callable[[str], object], what: str) -> None:
        with suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(take, what)

    def _take(self, what: str) -> None:
        if not self._came.is_set():
            self._came.set()
            _log.info(
                "%s: %s drains, and ends then; SIGQUIT, or SIGTERM or SIGINT for the third time, ends it at once, "
                "without a checkpoint",
                *(what, self._name),
            )

    def _take_signal(self, number: signal.Signals) -> None:
        self._signals += 1
        if self._signals >= _INSISTENT:
            _log.warning("%s again: %s ends without a checkpoint", number.name, self._name)
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif self._came.is_set():
            _log.warning("%s again: %s drains already; the next one ends it at once", number.name, self._name)
        else:
            self._take(number.name)
