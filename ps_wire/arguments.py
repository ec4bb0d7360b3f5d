"""Checks of the types of arguments that users give."""

from __future__ import annotations

from typing import Any

from ps_wire.errors import InvalidArgumentError
from ps_wire.shown import shown


def check_text(what: str, value: Any) -> None:
    """Raises `InvalidArgumentError` if a value is no text, such as a name; `what` names it in the message."""
    if not isinstance(value, str):
        raise InvalidArgumentError(f"{what} is a text, not {shown(value)}")


def check_flag(what: str, value: Any) -> None:
    """Raises `InvalidArgumentError` if a value is neither true nor false; `what` names it in the message."""
    if not isinstance(value, (bool, int)):
        raise InvalidArgumentError(f"{what} is True or False, not {shown(value)}")
