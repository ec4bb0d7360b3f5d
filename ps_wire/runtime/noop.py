"""The callback that does nothing."""

from __future__ import annotations


def noop(*_: object) -> None:
    """Does nothing, whatever it is called with."""
