"""Prints the page that lists the modules: `python docs/modules.py > docs/modules.md`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
PACKAGES: Final = ("ps_wire", "ps_service", "trainer_client", "ps_reader")

_HEAD: Final = """\
# Modules

What each module does, in the words of its docstring. Which package may import which is shown in
[architecture.md](architecture.md#layers).

This page is written by `python docs/modules.py > docs/modules.md` (or `make pages`); a test holds it against the code.
"""


def page() -> str:
    """The page, as Markdown."""
    return "\n".join([_HEAD, *(line for package in PACKAGES for line in _section(package))])


def _section(package: str) -> Iterator[str]:
    """A package and its sub-packages: one heading each, and a table of their modules."""
    for folder in sorted({path.parent for path in _modules(package)}):
        name = ".".join(folder.relative_to(ROOT).parts)
        yield f"{'##' if name == package else '###'} {name}\n"
        yield f"{_summary(folder / '__init__.py')}\n"
        modules = [
            path for path in sorted(folder.glob("*.py")) if path in _modules(package) and path.stem != "__init__"
        ]
        if modules:
            yield "| module | what it does |\n|---|---|"
            yield from (f"| `{path.stem}` | {_summary(path).replace('|', '&#124;')} |" for path in modules)
            yield ""


@cache
def _modules(package: str) -> list[Path]:
    """The files of a package that say something of themselves: generated code does not."""
    return [path for path in (ROOT / package).rglob("*.py") if _docstring(path)]


def _summary(path: Path) -> str:
    """The first paragraph of a module's docstring, in one line."""
    return " ".join(_docstring(path).split("\n\n")[0].split())


@cache
def _docstring(path: Path) -> str:
    return ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""


if __name__ == "__main__":
    print(page(), end="")
