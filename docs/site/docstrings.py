"""Turns the docstrings of the project, in which backticks mean code as in Markdown, into reStructuredText."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import ps_reader
import ps_service
import trainer_client
from trainer_client import codecs, errors, policies, tables

if TYPE_CHECKING:
    from docutils.nodes import Element, TextElement
    from sphinx.addnodes import pending_xref
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

_TAKEN = {"trainer_client.tables.SGD", "trainer_client.tables.Adagrad", "ps_reader.Reader"}

DOCUMENTED = {
    name: f"{module.__name__}.{name}"
    for module in (codecs, errors, policies, tables, ps_reader, ps_service, trainer_client)
    for name in module.__all__
    if name[0].isupper() and f"{module.__name__}.{name}" not in _TAKEN
}
"""Where a class that a docstring or an annotation names is documented: at the top, if it is there."""

OURS = ("trainer_client.", "ps_service.", "ps_wire.", "ps_reader.")

_CODE = re.compile(r"(?<!`)`([^`]+)`(?!`)")
_BEFORE = re.compile(r"[\s'\"(\[{<\-/:]$")
_BEHIND = re.compile(r"[\s'\")\]}>\-/:.,;!?\\]")


MADE_BY_OURSELVES = {
    *("Client", "Pending", "Context", "Communicator", "RemoteModule", "RemoteObject", "RemoteParameter", "RRef"),
    *("DistributedOptimizer", "DistributedScheduler", "Stepped", "Replica", "Replicas", "LocalSteps", "Table"),
    *("Progress", "StepNumbers", "ConnectionState", "LookedUp", "OptimizerWithTables", "SchedulerWithTables"),
    *("Change", "ModuleChange", "Reader", "RowsRead", "TableVersion", "Version"),
    *("Cluster", "OwnerState", "Policy", "WorkerInfo"),
}
"""Classes that programs do not make: the arguments of their constructors are of no interest."""


INNER = {
    "Pending": {"settled", "is_lazy", "hurry", "origin"},
    "Context": {"attempt", "looked_up", "stepped", "steps", "root", "seeds"},
    "DistributedOptimizer": {"remotes", "local", "scaled"},
    "RRef": {"may_be_parameter"},
    "RemoteObject": {"made_by", "given_by"},
    "Replica": {"current"},
}
"""Attributes that other modules of the project use, and no program."""


def without(lines: list[str], names: set[str]) -> list[str]:
    """A docstring without these entries of the section on attributes."""
    text = "\n".join(lines)
    for name in names:
        text = re.sub(rf"^    {name}: .*\n(?:     +\S.*\n?)*", "", text, flags=re.MULTILINE)
    return re.sub(r"^Attributes:\n(?!    )", "", text, flags=re.MULTILINE).split("\n")


def converted(lines: list[str]) -> list[str]:
    """A docstring as reStructuredText. A block is code if it is indented more than the text before it."""
    out: list[str] = []
    prose: list[str] = []
    code = None  # the indentation of the block, inside one
    for number, line in enumerate(lines):
        indentation = len(line) - len(line.lstrip())
        if code is not None and line.strip() and indentation < code:
            code = None
        if code is None and line.strip() and number > 1 and not lines[number - 1].strip():
            before = next((each for each in reversed(lines[:number]) if each.strip()), "")
            if indentation >= len(before) - len(before.lstrip()) + 4 and not before.lstrip().startswith("- "):
                code = indentation
                prose += [" " * (indentation - 4) + "::", ""]
        if code is None:
            prose.append(line)
        else:
            out += [*marked_up("\n".join(prose)).split("\n"), line] if prose else [line]
            prose = []
    return [*out, *marked_up("\n".join(prose)).split("\n")]


def marked_up(text: str) -> str:
    """Prose with its code, and what would be markup by accident, as reStructuredText has them."""
    parts = _CODE.split(text)
    for index, part in enumerate(parts):
        if index % 2:
            parts[index] = _code(" ".join(part.split()), parts[index - 1], parts[index + 1])
        else:
            parts[index] = re.sub(r"(?<=[^\s*])\*|\*(?=[^\s*])|\|", r"\\\g<0>", part)
    return "".join(parts)


def _code(code: str, before: str, behind: str) -> str:
    name = DOCUMENTED.get(code.removeprefix("tc.").rpartition(".")[2])
    role = f":py:obj:`{code} <{name}>`" if name and re.fullmatch(r"[\w.]+", code) else f"``{code}``"
    apart_before = "\\ " if before and not _BEFORE.search(before) else ""
    apart_behind = "\\ " if behind and not _BEHIND.match(behind) else ""
    return apart_before + role + apart_behind


def convert(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    lines[:] = converted(without(lines, INNER.get(name.rpartition(".")[2], set())))


def shorten(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, signature: str | None, result: str | None
) -> tuple[str, str | None] | None:
    return ("", None) if name.rpartition(".")[2] in MADE_BY_OURSELVES and what in ("class", "exception") else None


def resolve(app: Sphinx, env: BuildEnvironment, node: pending_xref, contnode: TextElement) -> Element | None:
    """Finds classes by their short names: annotations have these, or those of the modules that they are in."""
    target = node.get("reftarget", "")
    name = DOCUMENTED.get(target.rpartition(".")[2]) if "." not in target or target.startswith(OURS) else None
    if node.get("refdomain") != "py" or name is None or name == target:
        return None
    return env.domains["py"].resolve_xref(env, node["refdoc"], app.builder, "obj", name, node, contnode)


def setup(app: Sphinx) -> dict[str, bool]:
    # They have longer ones, for what torch says of a scheduler that is given one of these.
    trainer_client.DistributedOptimizer.__name__ = "DistributedOptimizer"
    tables.OptimizerWithTables.__name__ = "OptimizerWithTables"
    app.connect("autodoc-process-docstring", convert, priority=400)  # before the sections become fields
    app.connect("autodoc-process-signature", shorten)
    app.connect("missing-reference", resolve)
    return {"parallel_read_safe": True}
