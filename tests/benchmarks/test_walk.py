"""The walk: few functions run for one pass, on its owner and on its trainer, and the architecture page names them."""

from __future__ import annotations

import re
from pathlib import PurePath

import pytest

from tests.conftest import ROOT
from tests.forking.process import Forking

MOST_CALLS = {
    "NeuMF, owner": 220,
    "NeuMF, trainer": 148,
    "transformer, owner": 242,
    "transformer, trainer": 174,
}

TORCHS = "[the module's forward]"


@pytest.fixture(scope="module")
def walk(forking: Forking) -> str:
    """What the command prints."""
    with forking.start("tests.benchmarks.walking", "--functions") as process:
        printed = process.communicate(timeout=120)
    assert process.returncode == 0
    return printed


def test_few_functions_run_for_a_pass(walk: str) -> None:
    counted = {name: int(calls) for name, calls in re.findall(r"^(.+): (\d+) calls", walk, re.MULTILINE)}
    assert counted.keys() == MOST_CALLS.keys()
    assert all(counted[name] <= most for name, most in MOST_CALLS.items()), counted


def test_the_architecture_page_names_the_functions_of_a_pass(walk: str) -> None:
    listed = walk.partition("NeuMF, owner: ")[2].partition("NeuMF, trainer: ")[0]
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    section = page.partition("## One pass on its owner, function by function\n")[2].partition("\n## ")[0]
    figures = "".join(re.findall(r"```text\n(.*?)```", section, re.DOTALL)).replace(TORCHS, "")
    assert set(re.findall(r"[\w.]+", figures)) == {
        _shown(*each) for each in re.findall(r"^ *\d+ (\S+) (\S+)$", listed, re.M)
    }


def _shown(path: str, name: str) -> str:
    """How the page shows a function: `Class.method`, the class alone for a method of Python's, or `module.function`."""
    *owners, last = name.replace(".<locals>", "").split(".")
    if last.startswith("__"):
        return ".".join(owners)
    return ".".join((*owners, last) if owners else (PurePath(path).stem, last))
