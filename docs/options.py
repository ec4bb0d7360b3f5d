"""Prints the page that lists the options of an owner: `python docs/options.py > docs/options.md`."""

from __future__ import annotations

from typing import Any, Final

from ps_service.config import OwnerConfig

_HEAD: Final = """\
# Options

This page is written by `python docs/options.py > docs/options.md` (or `make pages`); a test holds it against the code.

Each option of `ps-service serve` is a flag, a variable of the environment, and a key of the TOML file that `--config`
names. Flags win over variables, and variables over the file. [deploy/owner.toml](../deploy/owner.toml) is such a file
with the defaults. [limits.md](limits.md) says what happens at each bound.

| flag | variable | key | default | meaning |
|---|---|---|---|---|
"""


def page() -> str:
    """The page, as Markdown."""
    return _HEAD + "".join(f"{_row(name)}\n" for name in OwnerConfig.model_fields)


def _row(name: str) -> str:
    field = OwnerConfig.model_fields[name]
    key = field.alias or name
    flag = f"--{key.replace('_', '-')}"
    if field.default is True:
        flag = f"--no-{key.replace('_', '-')}"
    cells = [f"`{flag}`", f"`PS_{key.upper()}`", f"`{key}`", _shown(field.default), field.description or ""]
    return f"| {' | '.join(cells)} |"


def _shown(default: Any) -> str:
    match default:
        case bool():
            return "on" if default else "off"
        case "" | None | ():
            return ""
        case _:
            return f"`{default}`"


if __name__ == "__main__":
    print(page(), end="")
