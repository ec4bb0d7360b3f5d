"""The report of attacks: a table in the terminal, in Markdown, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.attack.run import Outcome

COLUMNS = ("attack", "tried", "outcome")


def row(outcome: Outcome) -> tuple[str, str, str]:
    """The cells of an attack."""
    name = outcome.attack.name.replace("_", " ")
    count = f"{outcome.tried:,} tries, {outcome.seconds:.1f} s"
    held = f"{outcome.words}: {outcome.attack.holds}" if outcome.words == "holds" else outcome.words
    return name, f"{outcome.attack.tries} ({count})", held


def summary(found: Sequence[Outcome]) -> str:
    """The last line."""
    broken = sum(bool(each.broken) for each in found)
    skipped = sum(bool(each.skipped) for each in found)
    tries, seconds = sum(each.tried for each in found), sum(each.seconds for each in found)
    return (
        f"{len(found)} attacks, {tries:,} tries in {seconds:.0f} s: {len(found) - broken - skipped} hold, {broken} do "
        f"not, {skipped} could not be tried"
    )


def show(found: Sequence[Outcome]) -> None:
    """Prints the table."""
    table = Table(*COLUMNS, show_lines=True)
    for each in found:
        style = "red" if each.broken else "yellow" if each.skipped else None
        table.add_row(*(cell.replace("[", r"\[") for cell in row(each)), style=style)
    console = Console()
    console.print(table)
    console.print(summary(found), highlight=False)


def write(found: Sequence[Outcome], folder: Path) -> None:
    """Writes attacks.md and attacks.json into a folder, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["| " + " | ".join(COLUMNS) + " |", "|---|---|---|"]
    lines += ["| " + " | ".join(cell.replace("|", r"\|") for cell in row(each)) + " |" for each in found]
    (folder / "attacks.md").write_text("\n".join([*lines, "", summary(found), ""]), "utf-8")
    data = [
        {
            "attack": each.attack.name,
            "tries": each.attack.tries,
            "holds": each.attack.holds,
            "tried": each.tried,
            "seconds": round(each.seconds, 3),
            "outcome": "skipped" if each.skipped else "broken" if each.broken else "held",
            "why": each.skipped or each.broken,
        }
        for each in found
    ]
    (folder / "attacks.json").write_text(json.dumps(data, indent=2) + "\n", "utf-8")
