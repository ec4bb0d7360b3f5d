"""Tests that docs/coming-from-torch-rpc.md shows the diffs of docs/tutorials, and that these are small and sound."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DIFFS = sorted((ROOT / "docs" / "tutorials").glob("*.diff"))
PAGE = (ROOT / "docs" / "coming-from-torch-rpc.md").read_text("utf-8")
MOST_LINES = 12

HUNK = re.compile(r"@@ -\d+(?:,(\d+))? \+(\d+)(?:,(\d+))? @@(?: ([\w.]+))?$")


def lines_of(diff: Path) -> list[str]:
    return diff.read_text("utf-8").splitlines()


def added(diff: Path) -> list[str]:
    """The lines that a diff adds, blank ones included; a line that replaces another is one of them."""
    return [line[1:] for line in lines_of(diff) if re.match(r"\+(?!\+\+ )", line)]


def test_there_is_a_diff_for_each_tutorial() -> None:
    names = {"parameter_server", "rnn", "rl", "pipeline", "batch_parameter_server", "batch_reinforce", "ddp_rpc"}
    assert {diff.stem for diff in DIFFS} == names


def test_the_page_shows_exactly_these_diffs() -> None:
    shown = re.findall(r"^```diff\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert sorted(shown) == sorted(diff.read_text("utf-8") for diff in DIFFS)


@pytest.mark.parametrize("diff", DIFFS, ids=lambda diff: diff.stem)
def test_a_diff_changes_at_most_a_dozen_lines_and_the_page_says_how_many(diff: Path) -> None:
    (said,) = re.findall(rf"\(tutorials/{diff.name}\) \| (\d+) \|", PAGE)
    assert int(said) == len(added(diff)) <= MOST_LINES


@pytest.mark.parametrize("diff", DIFFS, ids=lambda diff: diff.stem)
def test_a_diff_is_well_formed_and_has_no_lines_of_context(diff: Path) -> None:
    """Each hunk has as many lines as its head says, and hunks begin where the ones before have moved them."""
    lines, moved = lines_of(diff), 0
    while lines:
        line = lines.pop(0)
        if line.startswith("--- a/distributed/rpc/"):
            assert lines.pop(0) == line.replace("--- a/", "+++ b/")
            moved = 0
            continue
        head = HUNK.match(line)
        assert head is not None, line
        before, after = (int(head[group] or 1) for group in (1, 3))
        begins = int(line.split()[1].split(",")[0][1:]) + (before == 0)
        assert int(head[2]) - (after == 0) == begins + moved, line
        hunk, lines = lines[: before + after], lines[before + after :]
        assert [each[0] for each in hunk] == ["-"] * before + ["+"] * after, line
        moved += after - before


@pytest.mark.parametrize("diff", DIFFS, ids=lambda diff: diff.stem)
def test_what_a_diff_imports_is_there(diff: Path) -> None:
    imports = [line for line in added(diff) if re.match("import |from ", line)]
    assert imports
    names: dict[str, object] = {}
    for line in imports:
        exec(line, names)
    for mark in re.findall(r"^ *@([\w.]+)$", "\n".join(added(diff)), re.MULTILINE):
        assert callable(eval(mark, names)), mark


@pytest.mark.parametrize("diff", DIFFS, ids=lambda diff: diff.stem)
def test_what_is_marked_is_named(diff: Path) -> None:
    """Without lines of context, the name behind the numbers says what follows the mark."""
    marks = re.findall(r"^(@@ .*)\n\+ *@", diff.read_text("utf-8"), re.MULTILINE)
    assert marks
    for head in marks:
        found = HUNK.match(head)
        assert found is not None and found[4], head
