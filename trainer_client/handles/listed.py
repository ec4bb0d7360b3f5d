"""Arguments that are one thing or several."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ps_wire.errors import InvalidArgumentError


def listed(given: Any) -> list[Any]:
    """What is given, in a list; a text or a handle alone counts as one."""
    # A handle of a module can be iterated over, to say that this is none of its uses.
    is_one = isinstance(given, str) or hasattr(given, "name") or not isinstance(given, Iterable)
    return [given] if is_one else list(given)


def names(given: object) -> list[str]:
    """The names of what is given, by its name or a handle, alone or several. Raises `InvalidArgumentError` if something
    has no name."""
    found = []
    for each in listed(given):
        name = each if isinstance(each, str) else getattr(each, "name", None)
        if not isinstance(name, str) or not name:
            raise InvalidArgumentError(f"give the name of an object, or a handle of one that has a name, not {each!r}")
        found.append(name)
    return found
