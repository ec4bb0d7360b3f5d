"""Shows the progress of a run: bars in a terminal, otherwise plain lines."""

from __future__ import annotations

from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

_LINES: Final = 10
"""Plain lines for each part."""


class Bars:
    """A bar for each part of a run, or up to ten lines where there is no terminal.

    Args:
        console: Where they are shown.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
            console=console,
            expand=True,
            disable=not console.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {}
        self._said: dict[str, int] = {}

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def show(self, part: str, done: int, total: int, note: str = "") -> None:
        """Shows that `done` of about `total` of a part are done."""
        if self._console.is_terminal:
            if part not in self._tasks:
                self._tasks[part] = self._progress.add_task(part, total=total, note=note)
            self._progress.update(self._tasks[part], completed=done, total=total, note=note)
        elif (tenth := done * _LINES // max(total, 1)) > self._said.get(part, 0):
            self._said[part] = tenth
            line = f"{part} {done}/{total} {note}".rstrip()
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)
