"""Shows a status again and again in place, in the height of the terminal."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ps_service.cli.units import duration
from ps_wire.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import ConsoleOptions, RenderableType, RenderResult

    from ps_service.cli.status_tables import Section

_LEVELS: Final = (0, 1, 2, 3, 5, 8, 13, 20, 40, 80, 160, 1000)
"""Rows that a table gets, one after the other; with 0 it has one line with its title."""


def watch(
    view: Callable[[], RenderableType],
    seconds: float,
    console: Console | None = None,
    wait: Callable[[float], None] = time.sleep,
    screen: bool = True,
) -> None:
    """Shows what a function returns, and again every few seconds, in the same place, until Ctrl-C.

    If the owner does not answer, its last status stays, with a line that says for how long. If there is none yet, this
    raises `UnavailableError`. With `screen`, it uses a screen of its own, as editors do.
    """
    last, seen = view(), time.monotonic()
    with suppress(KeyboardInterrupt), Live(last, console=console, screen=screen, auto_refresh=False) as live:
        while True:
            wait(seconds)
            try:
                last, seen = view(), time.monotonic()
                live.update(last, refresh=True)
            except UnavailableError as error:
                text = f"no answer for {duration(time.monotonic() - seen)}: {error}"
                live.update(Group(Text(text, style="red"), last), refresh=True)


class Fitted:
    """Tables that share the height of the terminal, so that each of them is seen.

    Rows are given in turns, to the table that has fewest, and at most `most` of each. What is left out is told below
    it. Of what stands above the tables, `head`, the first part stays longest.
    """

    def __init__(self, head: Sequence[RenderableType], sections: Sequence[Section], most: int) -> None:
        self._head = head
        self._sections = sections
        self._most = most

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        free = options.update(height=None)
        # One line is left for that of an owner that does not answer.
        height = (options.height or console.height) - 1

        def lines(parts: Sequence[RenderableType]) -> int:
            return len(console.render_lines(Group(*parts), free, pad=False))

        blocks = [(each, self._block(each, 0)) for each in self._sections]
        blocks = [(each, block) for each, block in blocks if block]
        head = list(self._head)
        while len(head) > 1 and lines(head) + len(blocks) > max(height // 2, len(blocks)):
            head.pop()
        room = height - lines(head) - len(blocks)
        levels = [0] * len(blocks)
        open_ones = set(range(len(blocks)))
        while open_ones:
            chosen = min(open_ones, key=lambda number: (levels[number], number))
            section, before = blocks[chosen]
            rows = _LEVELS[levels[chosen] + 1] if levels[chosen] + 1 < len(_LEVELS) else self._most
            block = self._block(section, min(rows, self._most))
            more = lines(block) - lines(before)
            if more > room or rows >= self._most:
                open_ones.discard(chosen)
            if more <= room:
                room -= more
                blocks[chosen] = section, block
                levels[chosen] += 1
        yield Group(*head, *(part for _, block in blocks for part in block))

    def _block(self, section: Section, rows: int) -> list[RenderableType]:
        if rows:
            return section(rows)
        made = section(1)
        title = next((str(each.title) for each in made if isinstance(each, Table)), "")
        return [Text(f"{title}: more than this terminal has room for", style="dim")] if made else []
