"""The lines of several programs in one output, each behind the name of its program."""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ps_service.launch.lines import Take


_PIECE: Final = 4096
"""Bytes that a pipe takes without a wait if it takes any (`PIPE_BUF`)."""

_LOOK_SECONDS: Final = 0.2


class Prefixed:
    """Writes lines into a file, at once and whole.

    Whoever reads the file slowly stops the programs, but not the end of them all: after `hurry`, what the file does not
    take at once is dropped.

    Args:
        descriptor: The file.
        when_closed: Is called when nobody reads it any more; what comes later is dropped.
    """

    def __init__(self, descriptor: int, when_closed: Callable[[], object]) -> None:
        self._descriptor = descriptor
        self._when_closed = when_closed
        self._is_open = True
        self._hurries = False

    def hurry(self) -> None:
        """Waits no more. May be called by a handler of signals, while `write` waits."""
        self._hurries = True

    def of(self, name: str) -> Take:
        """Takes the lines of the program with that name."""
        return partial(self.write, f"[{name}] ".encode())

    def write(self, prefix: bytes, line: bytes) -> None:
        """Writes a line."""
        rest = prefix + line
        while rest and self._is_open:
            try:
                _, ready, _ = select.select([], [self._descriptor], [], 0 if self._hurries else _LOOK_SECONDS)
                if ready:
                    rest = rest[os.write(self._descriptor, rest[:_PIECE]) :]
                elif self._hurries:
                    return
            except BlockingIOError:
                continue
            except OSError:
                self._is_open = False
                self._when_closed()
