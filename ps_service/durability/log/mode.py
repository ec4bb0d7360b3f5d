"""What an owner promises of what it has acknowledged."""

from __future__ import annotations

from typing import Final, NamedTuple, Self

_INTERVAL: Final = 1.0
"""Seconds, for an owner that has a data directory."""


class Mode(NamedTuple):
    """`always`, `interval:SECONDS` or `off`. The log is synced after at most `interval` seconds, and answers wait for
    that if it is 0; None is no log."""

    interval: float | None

    def __str__(self) -> str:
        if self.interval is None:
            return "off"
        return f"interval:{self.interval:g}" if self.interval else "always"

    @property
    def has_log(self) -> bool:
        """Whether there is a log."""
        return self.interval is not None

    @property
    def acknowledges(self) -> bool:
        """Whether answers wait until their records are on the disk."""
        return self.interval == 0

    @classmethod
    def parse(cls, text: str, has_folder: bool) -> Self:
        """The mode of a text. If that is empty, an owner with a data directory has an interval of a second. Raises
        `ValueError`."""
        if not text:
            return cls(_INTERVAL if has_folder else None)
        name, _, seconds = text.partition(":")
        if text in ("always", "off"):
            return cls(0.0 if text == "always" else None)
        try:
            interval = float(seconds)
        except ValueError:
            interval = -1.0
        if name != "interval" or not 0.001 <= interval <= 3600:
            raise ValueError(f"{text!r} is neither always, off nor interval:SECONDS, such as interval:1")
        return cls(interval)


OFF: Final = Mode(None)
