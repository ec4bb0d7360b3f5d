"""The snippets of a page: its fenced blocks of Python and of console commands."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parent.parent.parent

ADDRESSES: Final = {"127.0.0.1:50051": 0, "127.0.0.1:50052": 1}
"""The addresses that stand in pages, and the number of the owner that each is for."""

_BLOCK: Final = re.compile(
    r"^(?:<!-- (?:by (\d+) trainers|needs (\w+)) -->\n+)?```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL
)
_FILE: Final = re.compile(r"# (\w+)\.py\b")
_STARTED: Final = re.compile(r"`python (\w+)\.py([^`]*)`")


class Snippet(NamedTuple):
    """A fenced block of Python.

    Attributes:
        line: Number of its first line in the page.
        code: Its text.
        trainers: How many trainers run it, each with a client of its own.
        file: Name of the module that it is part of, if its first line says so.
        needs: Name of a package that it needs and that need not be installed; empty for none.
    """

    line: int
    code: str
    trainers: int
    file: str
    needs: str = ""

    @property
    def runs(self) -> bool:
        """Whether it is run as it stands: it is no part of a file, and what it needs is installed."""
        return not self.file and (not self.needs or find_spec(self.needs) is not None)

    @property
    def programs(self) -> list[list[str]]:
        """The name and arguments of each process that its first line starts with it."""
        found = _STARTED.findall(self.code.partition("\n")[0])
        return [[name, *arguments.split()] for name, arguments in found]


class Page:
    """A page with snippets.

    Args:
        name: Its path below the root.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._text = (ROOT / name).read_text("utf-8")

    def snippets(self) -> list[Snippet]:
        """Its blocks of Python, in order."""
        found = []
        for each in _BLOCK.finditer(self._text):
            if each[3] == "python":
                file = _FILE.match(each[4])
                line = self._text.count("\n", 0, each.start(4)) + 1
                found.append(Snippet(line, each[4], int(each[1] or 1), "" if file is None else file[1], each[2] or ""))
        return found

    @property
    def files(self) -> set[str]:
        """The names of the modules that it shows."""
        return {each.file for each in self.snippets() if each.file}

    def commands(self, first: str) -> list[str]:
        """The console commands of the block whose first command begins with `first`, without comments."""
        for each in _BLOCK.finditer(self._text):
            if each[3] == "console" and each[4].startswith(f"$ {first}"):
                return [line[2:].partition("  #")[0].strip() for line in each[4].splitlines() if line.startswith("$ ")]
        raise LookupError(f"{self.name} has no commands that begin with {first}")

    def write_files(self, folder: Path, addresses: list[str]) -> None:
        """Writes the modules that it shows; blocks with the same name are parts of one."""
        parts: dict[str, list[str]] = {}
        for each in self.snippets():
            if each.file:
                parts.setdefault(each.file, []).append(with_addresses(each.code, addresses))
        for name, texts in parts.items():
            (folder / f"{name}.py").write_text("\n\n".join(texts), "utf-8")


def with_addresses(text: str, addresses: list[str]) -> str:
    """The text with the addresses of real owners in place of those that stand in pages."""
    for shown, number in ADDRESSES.items():
        if number < len(addresses):
            text = text.replace(shown, addresses[number])
    return text
