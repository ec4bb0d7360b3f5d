"""Prints the page that describes the status of an owner: `python docs/status.py > docs/status.md`."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from typing import Final

from ps_service.measures.events import KINDS
from ps_wire.status import OwnerStatus, parts

TYPES: Final = (
    OwnerStatus,
    parts.TrainerStatus,
    parts.PassStatus,
    parts.ObjectStatus,
    parts.OptimizerStatus,
    parts.LogStatus,
    parts.TableStatus,
    parts.OperationStatus,
    parts.CommunicatorStatus,
    parts.MemoryStatus,
    parts.QuotaStatus,
    parts.MemberStatus,
    parts.EventStatus,
)
"""The types, the one that holds the others first."""

_JSON: Final = {
    "int": "number, whole",
    "int | None": "number, whole, or null",
    "float": "number",
    "float | None": "number, or null",
    "str": "string",
    "bool": "true or false",
    "tuple[str, ...]": "list of strings",
    "tuple[float, ...]": "list of numbers",
    "dict[str, int]": "object: whole numbers by name",
}

_HEAD: Final = """\
# The status of an owner

An owner describes itself in one form to all who ask: `await ps.status()` returns an `OwnerStatus`, and
`ps-service status --json` prints the same as JSON. Numbers are numbers, sizes are in bytes, and times are in seconds.

This page is written by `python docs/status.py > docs/status.md` (or `make pages`); a test holds it against the code.

A request for the status does not count in what it reports: not as a request in flight, not as a call per second, and,
if it comes from the command line, not as a session. It is answered by a thread of its own, however busy the owner is.
Lists are bounded; the numbers beside them count all.

`/status.json` of the page has this for every owner of a group, and beside it `trainers`: those of the group, each once,
with `slow`, which says why a trainer is slow, as the page does ([fields](page.md#for-programs)).
"""


def page() -> str:
    """The page, as Markdown."""
    return "\n".join([_HEAD, *map(_section, TYPES), _kinds()])


def explained(kind: type) -> dict[str, str]:
    """What the docstring of a type says of each of its attributes, by name, in one line each."""
    text = (inspect.getdoc(kind) or "").partition("Attributes:\n")[2]
    found = re.findall(r"^    (\w+): (.*(?:\n        .*)*)", text, re.MULTILINE)
    return {name: " ".join(words.split()) for name, words in found}


def _section(kind: type) -> str:
    title = (inspect.getdoc(kind) or "").partition("\n\n")[0]
    told = explained(kind)
    rows = [f"| `{each.name}` | {_type(str(each.type))} | {told[each.name]} |" for each in fields(kind)]  # type: ignore[arg-type]
    return "\n".join(
        [
            f"## {kind.__name__}\n",
            f"{' '.join(title.split())}\n",
            "| field | JSON | meaning |\n|---|---|---|",
            *rows,
            "",
        ]
    )


def _type(annotation: str) -> str:
    single = re.fullmatch(r"(\w+Status) \| None", annotation)
    if single is not None:
        return f"[{single[1]}](#{single[1].lower()}), or null"
    nested = re.fullmatch(r"tuple\[(\w+), \.\.\.\]", annotation)
    if nested is not None and annotation not in _JSON:
        return f"list of [{nested[1]}](#{nested[1].lower()})"
    return _JSON[annotation]


def _kinds() -> str:
    rows = [f"| `{kind}` | {meaning} |" for kind, meaning in KINDS.items()]
    return "\n".join(["## Kinds of events\n", "| kind | meaning |\n|---|---|", *rows, ""])


if __name__ == "__main__":
    print(page(), end="")
