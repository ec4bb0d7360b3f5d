"""The lines of several programs in one output, each behind the name of its program."""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ps_service.launch.lines import Take


class Prefixed:
    """Writes lines into a file, at once and whole.

    Args:
        descriptor: The file.
        when_closed: Is called when nobody reads it any more; what comes later is dropped.
    """

    def __init__(self, descriptor: int, when_closed: Callable[[], object]) -> None:
        self._descriptor = descriptor
        self._when_closed = when_closed
        self._is_open = True

    def of(self, name: str) -> Take:
        """Takes the lines of the program with that name."""
        return partial(self.write, f"[{name}] ".encode())

    def write(self, prefix: bytes, line: bytes) -> None:
        """Writes a line."""
        rest = prefix + line
        while rest and self._is_open:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except BlockingIOError:  # another program that has the same terminal has set it so
                select.select([], [self._descriptor], [])
            except OSError:
                self._is_open = False
                self._when_closed()
