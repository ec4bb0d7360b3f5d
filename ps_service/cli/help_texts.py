"""Help texts of commands, from their docstrings."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typer.models import CommandInfo

_AS_IT_IS = "\b\n"
"""What stands before a paragraph whose lines click must not join."""


def laid_out(text: str) -> str:
    """A text whose indented paragraphs stay as they are."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(f"{_AS_IT_IS}{each}" if each.startswith("    ") else each for each in paragraphs)


def tell(command: CommandInfo) -> None:
    """Gives a command its help text, and its first sentence, whole, as the line in the list of commands."""
    text = inspect.cleandoc((command.callback and command.callback.__doc__) or "")
    command.help = laid_out(text)
    command.short_help = " ".join(text.partition("\n\n")[0].split())
