"""How the table that a program asks for differs from the one of its name, for messages."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ps_wire.tables import options


def differences(known: Mapping[str, Any], asked: Mapping[str, Any]) -> str:
    """The arguments that differ, with both values; of options of the same kind only the fields that differ.

    Args:
        known: The settings of the table that exists.
        asked: Those that the program asks for.
    """
    told: list[str] = []
    for name, wanted in asked.items():
        made = known.get(name)
        if made == wanted:
            continue
        if isinstance(made, dict) and isinstance(wanted, dict) and made.get("kind") == wanted.get("kind"):
            told += [
                f"{field}={made.get(field)!r} of {name}, not {value!r}"
                for field, value in wanted.items()
                if made.get(field) != value
            ]
        else:
            told.append(f"{name}={_short(made)}, not {_short(wanted)}")
    return " and ".join(told) or "other arguments"


def _short(value: Any) -> str:
    """A setting as a program writes it: options without the fields that have their defaults."""
    if isinstance(value, list):
        return f"[{', '.join(map(_short, value))}]"
    if not (isinstance(value, dict) and "kind" in value):
        return repr(value)
    option = options.from_plain(value)
    given = [
        f"{field.name}={_plain(getattr(option, field.name))}"
        for field in dataclasses.fields(option)
        if getattr(option, field.name) != field.default
    ]
    return f"{type(option).__name__}({', '.join(given)})"


def _plain(value: Any) -> str:
    return _short(value) if isinstance(value, dict) else repr(value)
