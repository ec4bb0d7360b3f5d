"""Tests that the snippets of pages can be pasted into the console `python -m asyncio`."""

from __future__ import annotations

import ast
import codeop

import pytest

from tests.pages.snippets import ROOT, Page
from tests.pages.test_snippets import PAGES

PASTED = ["README.md", *PAGES, "docs/profiling.md"]


def refused(code: str) -> list[str]:
    """The lines at which the console finds an error: it takes line by line, and runs a statement when it is complete.

    A compound statement is complete at an empty line, so none may be inside, and one has to follow.
    """
    compiler = codeop.CommandCompiler()
    compiler.compiler.flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    held: list[str] = []
    wrong = []
    for line in [*code.splitlines(), ""]:
        held.append(line)
        try:
            if compiler("\n".join(held), "<console>", "single") is not None:
                held = []
        except SyntaxError:
            wrong.append(line)
            held = []
    return wrong + held


@pytest.mark.parametrize("name", PASTED)
def test_the_console_takes_every_snippet(name: str) -> None:
    page = Page(name)
    assert {each.line: wrong for each in page.snippets() if not each.file and (wrong := refused(each.code))} == {}


def test_what_the_console_refuses_is_found() -> None:
    assert refused("for x in y:\n    await x\nz = 1\n") == ["z = 1"]
    assert refused("class A:\n    x = 1\n\n    y = 2\n") == ["    y = 2"]
    assert refused("f(\n") == ["f(", ""]
    assert refused("async with a as b:\n    await b(  # comment\n        1\n    )\n\nwith c:\n    ...\n") == []


@pytest.mark.parametrize("name", PASTED)
def test_the_text_says_which_snippets_need_several_trainers(name: str) -> None:
    lines = (ROOT / name).read_text("utf-8").splitlines()
    for each in Page(name).snippets():
        if each.trainers > 1:
            before = "\n".join(lines[each.line - 8 : each.line - 2])
            assert each.trainers == 4 and "Four trainers run this at once" in before, f"line {each.line}"


@pytest.mark.parametrize("name", PASTED)
def test_the_console_prints_nothing_between_the_lines_of_a_bar(name: str) -> None:
    for each in Page(name).snippets():
        for node in ast.walk(ast.parse(each.code)) if "tc.progress(" in each.code else ():
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
                assert not isinstance(node.value.func, ast.Attribute), ast.unparse(node)
