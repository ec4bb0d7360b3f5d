"""What a program of the examples says before it begins, and where its files go."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

SHORT = "short"
"""The folder of short runs, in that of full ones."""


@dataclass(frozen=True)
class Plan:
    """A run of a program, before it begins.

    Args:
        takes: How long a run with the defaults takes on two cores that nothing else uses, as measured.
        short: Whether this one has less to do than that.
        out: Where the files of a full run go; None if there are none.
    """

    takes: str
    short: bool = False
    out: Path | None = None

    @property
    def folder(self) -> Path:
        """Where the files of this run go: those of a short one do not replace those of a full one."""
        assert self.out is not None
        return self.out / SHORT if self.short else self.out

    def __str__(self) -> str:
        line = f"with the defaults this takes {self.takes} on two idle cores"
        return f"{line}; it is a short run, whose files go to {self.folder}" if self.short and self.out else line


def shorter(settings: Any, *lengths: str) -> bool:
    """Whether settings have less to do than the defaults.

    Args:
        settings: The settings of a program; all fields have defaults.
        lengths: The fields that say how much there is to do: numbers, or None for as much as there is.
    """
    default = type(settings)()
    pairs = [(getattr(settings, name), getattr(default, name)) for name in lengths]
    return any(given is not None and (usual is None or given < usual) for given, usual in pairs)
