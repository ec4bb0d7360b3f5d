"""The standard error of a process, in a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ps_service.launch.process import Process


class ChildFailed(RuntimeError):
    """A child process failed; the message names its log."""


class Log:
    """The file ``NAME.log`` in a folder, which is made if it is not there; what was in the file is gone."""

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{name}.log"
        self.path.write_bytes(b"")

    def take(self, line: bytes) -> None:
        """Adds a line."""
        with self.path.open("ab") as file:
            file.write(line)

    def read(self) -> str:
        """All lines."""
        return self.path.read_text(errors="replace")

    def failed(self, name: str, what: str) -> ChildFailed:
        """Returns the error that says what went wrong with a process and how the log ends."""
        tail = "\n".join(self.read().splitlines()[-5:])
        return ChildFailed(f"{name} {what}; its log is {self.path}" + (f" and ends with\n{tail}" if tail else ""))

    def ended(self, process: Process, when: str = "") -> ChildFailed:
        """Returns the error that says with which code a process has ended."""
        return self.failed(process.name, f"ended with code {process.code} {when}".rstrip())
