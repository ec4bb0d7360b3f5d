"""Shows a status again and again in place, until Ctrl-C."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from ps_service.cli.units import duration
from ps_wire.errors import UnavailableError

if TYPE_CHECKING:
    from rich.console import RenderableType


def watch(
    view: Callable[[], RenderableType],
    seconds: float,
    console: Console | None = None,
    wait: Callable[[float], None] = time.sleep,
    screen: bool = True,
) -> None:
    """Shows what a function returns, and again every few seconds, in the same place of the terminal.

    If the owner does not answer, its last status stays, with a line that says for how long.

    Args:
        view: Asks for the status, and returns what to show.
        seconds: Seconds between two answers.
        console: Where to show it.
        wait: Waits for some seconds; Ctrl-C ends it.
        screen: Whether to use a screen of its own, as editors do.

    Raises:
        UnavailableError: No owner has answered yet.
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
