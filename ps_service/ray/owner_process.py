"""The process of an owner, which outlives the one that started it for as long as it takes to drain."""

from __future__ import annotations

import logging
import os
import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import psutil

_log = logging.getLogger(__name__)

_SHELL: Final = '"$@"; exit "$?"'
"""The shell waits for the owner: with one command alone it would become it."""


_READ_SECONDS: Final = 1.0
"""Seconds in which the last lines of one that has ended are read. A process that it has started may keep its output
open."""


class OwnerProcess:
    """An owner that runs a command, in a session of its own, behind a shell.

    Ray ends the direct children of a worker that ends, by SIGKILL. So the owner is a child of a child. This process
    alone has the other end of its standard input, whose end has it drain, however this process ends.

    Attributes:
        ended: Is set when it has ended.
        code: Its exit code then; negative for the number of a signal.
        listened: Where it has served first; empty if it has not.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self.ended: Final = threading.Event()
        self.code = 0
        self.listened = ""
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", _SHELL, "ps-service", *command],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        assert self._process.stdin is not None
        self._input: Final = self._process.stdin
        os.set_blocking(self._input.fileno(), False)
        self._lock = threading.Lock()
        reader = threading.Thread(target=self._read, name="ps-owner-output", daemon=True)
        reader.start()
        threading.Thread(target=self._wait, args=(reader,), name="ps-owner", daemon=True).start()

    @property
    def served(self) -> bool:
        """Whether it serves, or has served."""
        return bool(self.listened)

    @property
    def address(self) -> str:
        """Where it serves; empty if it does not yet, or has ended."""
        return "" if self.ended.is_set() else self.listened

    @property
    def pid(self) -> int:
        """Its process id; 0 if there is none."""
        with suppress(psutil.Error):
            for child in psutil.Process(self._process.pid).children():
                return int(child.pid)
        return 0

    def tell(self, line: str) -> None:
        """Writes a line to its standard input. Does nothing if it drains or has ended."""
        with self._lock:
            if self._input.closed:
                return
            try:
                os.write(self._input.fileno(), f"{line}\n".encode())
            except BlockingIOError:  # it has not read what thousands of moves have filled the pipe with
                _log.warning("the owner does not read what it is told: %s", line)
            except OSError:  # it has ended
                pass

    def drain(self) -> None:
        """Asks it to drain, and to end then. Does nothing the second time."""
        with self._lock:
            self._input.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                if " is serving on " in line and not self.listened:
                    self.listened = line.split()[-1]
                _log.info("%s", line.rstrip())

    def _wait(self, reader: threading.Thread) -> None:
        code = self._process.wait()
        reader.join(_READ_SECONDS)
        # A shell tells of a signal by a number above 128.
        self.code = 128 - code if code > 128 else code
        self.drain()
        self.ended.set()
