"""What shows the progress: a bar of rich or of tqdm, whichever is installed, or lines where there is no terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, Final, Protocol, TextIO

_LINE_SECONDS: Final = 10.0
"""Seconds between two lines where there is no terminal."""


class Bar(Protocol):
    """Shows how many batches are done."""

    def show(self, done: int, numbers: str) -> None:
        """Shows the present state.

        Args:
            done: Batches that are done.
            numbers: The numbers of the steps, in one line.
        """

    def close(self) -> None:
        """Leaves the last state where it is."""


class RichBar:
    """A bar of rich. Raises `ImportError` if rich is not installed."""

    def __init__(self, total: int | None, description: str) -> None:
        # Not at the top: the import takes a tenth of a second, and most programs show no bar.
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[numbers]}", markup=False),
            auto_refresh=False,
            console=Console(stderr=True),
        )
        self._task = self._progress.add_task(description, total=total, numbers="")
        self._progress.start()

    def show(self, done: int, numbers: str) -> None:
        self._progress.update(self._task, completed=done, numbers=numbers, refresh=True)

    def close(self) -> None:
        self._progress.stop()


class TqdmBar:
    """A bar of tqdm. Raises `ImportError` if tqdm is not installed."""

    def __init__(self, total: int | None, description: str) -> None:
        from tqdm.auto import tqdm  # type: ignore[import-untyped, import-not-found, unused-ignore]  # no types

        self._bar: Any = tqdm(total=total, desc=description or None)

    def show(self, done: int, numbers: str) -> None:
        self._bar.set_postfix_str(numbers, refresh=False)
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        self._bar.close()


class Lines:
    """A line every ten seconds, and one at the end.

    Args:
        total: Number of batches, if it is known.
        description: What is trained.
        out: Where the lines go; standard error if None.
        clock: A monotonic clock, in seconds.
    """

    def __init__(
        self,
        total: int | None,
        description: str,
        out: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._of = "" if total is None else f"/{total:,}"
        self._description = f"{description}: " if description else ""
        self._out = out
        self._clock = clock
        self._next = clock() + _LINE_SECONDS
        self._last = ""
        self._written = ""

    def show(self, done: int, numbers: str) -> None:
        self._last = f"{self._description}{done:,}{self._of}{f', {numbers}' if numbers else ''}"
        if self._clock() >= self._next:
            self._next = self._clock() + _LINE_SECONDS
            self._write()

    def close(self) -> None:
        if self._last != self._written:
            self._write()

    def _write(self) -> None:
        self._written = self._last
        print(self._last, file=self._out or sys.stderr, flush=True)


def bar_for(total: int | None, description: str) -> Bar:
    """The bar of rich, else of tqdm; lines, if neither is installed or there is no terminal and no notebook."""
    if not (sys.stderr.isatty() or "ipykernel" in sys.modules):
        return Lines(total, description)
    for kind in (RichBar, TqdmBar):
        try:
            return kind(total, description)
        except ImportError:
            continue
    return Lines(total, description)
