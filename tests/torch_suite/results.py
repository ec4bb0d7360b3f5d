"""What became of the tests: tables for people, and a file for later."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Final, NamedTuple

import torch

from benchmarks.figures import replace

PASSED: Final = "passed"
FAILED: Final = "failed"
NOT_APPLICABLE: Final = "not applicable"

VERDICTS: Final = (PASSED, FAILED, NOT_APPLICABLE)

PAGE: Final = Path(__file__).parent.parent.parent / "docs" / "coming-from-torch-rpc.md"
BEGIN: Final = "<!-- torch-suite: begin (python -m tests.torch_suite --page) -->"
END: Final = "<!-- torch-suite: end -->"

_NAMES_AN_ERROR: Final = re.compile(r"[A-Za-z][\w.]*(Error|Exception|Interrupt)\b")


class Result(NamedTuple):
    """What became of one test.

    Attributes:
        file: Its file, below `torch/testing/_internal/distributed`.
        cls: Its class.
        name: Its name.
        verdict: One of `VERDICTS`.
        why: Why it does not apply; else empty.
        error: The error that says most, with its traceback; empty if there is none.
        seconds: How long it took.
    """

    file: str
    cls: str
    name: str
    verdict: str
    why: str = ""
    error: str = ""
    seconds: float = 0.0

    @property
    def full_name(self) -> str:
        """Class and name, as `Class.test`."""
        return f"{self.cls}.{self.name}"

    @property
    def last_line(self) -> str:
        """The last line of the error that begins with an error's name."""
        lines = self.error.strip().splitlines()
        return next((line for line in reversed(lines) if _NAMES_AN_ERROR.match(line)), lines[-1] if lines else "")


def count(results: Sequence[Result]) -> str:
    """How many tests have passed, failed, and do not apply."""
    found = Counter(result.verdict for result in results)
    return ", ".join(f"{found[verdict]} {verdict}" for verdict in VERDICTS)


def table(results: Sequence[Result]) -> str:
    """One row for each file, in Markdown."""
    rows = [["torch's file", "tests", *VERDICTS], ["---", *["---:"] * (1 + len(VERDICTS))]]
    for file in dict.fromkeys(result.file for result in results):
        found = Counter(result.verdict for result in results if result.file == file)
        rows.append([f"`{file}`", *map(str, (found.total(), *(found[verdict] for verdict in VERDICTS)))])
    found = Counter(result.verdict for result in results)
    rows.append(["**all**", *(f"**{n}**" for n in (found.total(), *(found[verdict] for verdict in VERDICTS)))])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def reasons(results: Sequence[Result]) -> str:
    """Why tests do not apply, with how many of them there are, in Markdown."""
    found = Counter(result.why for result in results if result.verdict == NOT_APPLICABLE)
    return "\n".join(f"- {why} ({number})" for why, number in found.most_common())


def failures(results: Sequence[Result]) -> str:
    """The tests that failed, with the last line of their errors, in Markdown."""
    failed = [result for result in results if result.verdict == FAILED]
    lines = [f"- `{result.full_name}`: {_code(result.last_line)}" for result in failed]
    return "\n".join(lines) or "None."


def report(results: Sequence[Result]) -> str:
    """The whole report, in Markdown."""
    excused = [result for result in results if result.verdict == NOT_APPLICABLE and result.error]
    parts = [
        f"# torch's own tests of its rpc\n\nWith torch {torch.__version__}: {count(results)}.",
        table(results),
        f"## Failed\n\n{failures(results)}",
        f"## Not applicable\n\n{reasons(results)}",
        "Those of them that were run, and failed:",
        "\n".join(f"- `{each.full_name}` ({each.why}): {_code(each.last_line)}" for each in excused) or "None.",
    ]
    return "\n\n".join(parts) + "\n"


def block(results: Sequence[Result], version: str) -> str:
    """What the page of the docs shows, in Markdown.

    Args:
        results: The results of a whole run.
        version: The version of torch.
    """
    lines = [f"With torch {version}: **{count(results)}**.", "", table(results), ""]
    lines += ["Why tests do not apply:", "", reasons(results), "", "Which failed:", ""]
    failed = [result for result in results if result.verdict == FAILED]
    for cls, group in groupby(failed, key=lambda result: result.cls):
        lines.append(f"- `{cls}`: {', '.join(result.name for result in group)}")
    return "\n".join(lines).rstrip() + "\n"


def write(folder: Path, results: Sequence[Result]) -> None:
    """Writes `torch-suite.md` and `torch-suite.json` into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "torch-suite.md").write_text(report(results))
    whole = {"torch": torch.__version__.partition("+")[0], "results": results}
    (folder / "torch-suite.json").write_text(json.dumps(whole, indent=1))


def rewrite_page(folder: Path, page: Path = PAGE) -> None:
    """Replaces the block of the page by the results in `torch-suite.json` of a folder.

    Raises:
        OSError: A file cannot be read.
        ValueError: The markers are not in the page.
    """
    whole = json.loads((folder / "torch-suite.json").read_text())
    replace(page, BEGIN, END, block([Result(*each) for each in whole["results"]], whole["torch"]))


def _code(text: str) -> str:
    """A line as code, which may hold backticks, at most 200 characters of it."""
    return f"`` {text[:200]} ``" if text else ""
