"""What `ps-service inspect` prints."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from ps_service.cli.status_tables import table
from ps_service.cli.units import brief, size

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ps_service.durability.inspection import Inspected
    from ps_service.durability.log_inspection import InspectedLog


def as_json(found: Sequence[Inspected], log: InspectedLog | None) -> dict[str, Any]:
    """The checkpoints as JSON, newest first, with the field names of `Inspected`, and the log with those of
    `InspectedLog`. The age of a checkpoint whose manifest cannot be read is null."""
    plain = [{**asdict(each), "folder": str(each.folder)} for each in found]
    for each in plain:
        if not each["written"]:
            each["age_seconds"] = None
    return {"checkpoints": plain, "log": None if log is None else asdict(log)}


def show(folder: Path, found: Sequence[Inspected], log: InspectedLog | None) -> None:
    """Prints the checkpoints and the objects in the log as tables, and lines about the log."""
    console = Console()
    if found:
        _show_checkpoints(console, found, log is not None)
    else:
        console.print(f"{folder} holds no checkpoint", soft_wrap=True, markup=False, highlight=False)
    if log is not None:
        _show_log(console, log, "behind the newest checkpoint" if found else "from the beginning")


def _show_log(console: Console, log: InspectedLog, behind: str) -> None:
    of = f" of {log.owner}" if log.owner else ""
    nbytes, age = size(log.end - log.begin), brief(log.age_seconds)
    lines = [
        f"\nthe log{of} has {log.records:,} records {behind}, {nbytes}, from position {log.begin} to {log.end}",
        f"its {log.files:,} files have {size(log.nbytes)}, and were written {age} ago"
        if log.files > 1
        else f"its file has {size(log.nbytes)}, and was written {age} ago",
    ]
    if log.torn:
        lines.append(f"what follows at position {log.end} is not whole, and was not on the disk: it will be dropped")
    for line in lines:
        console.print(line, soft_wrap=True, markup=False, highlight=False)
    if log.damage:
        console.print(Text(log.damage, "red"), soft_wrap=True)
    named = [each for each in log.objects if each.name]
    if named:
        listed = table("Made or changed in the log", "object", ("steps", "changes"), ("class",))
        for each in named:
            steps = "" if each.version is None else f"{each.version:,}"
            listed.add_row(Text(each.name), Text(each.class_name), steps, f"{each.changes:,}")
        console.print()
        console.print(listed)
    if anonymous := len(log.objects) - len(named):
        console.print(f"and {anonymous:,} without a name", highlight=False)


def _show_checkpoints(console: Console, found: Sequence[Inspected], has_log: bool) -> None:
    numbers = (
        ("age", "objects", "sessions", "position", "bytes") if has_log else ("age", "objects", "sessions", "bytes")
    )
    listed = table("Checkpoints", "name", numbers, ("state",))
    for each in found:
        whole = not each.damage
        listed.add_row(
            Text(each.folder.name),
            Text("whole" if whole else "untrusted" if each.untrusted else "damaged", "" if whole else "red"),
            brief(each.age_seconds) if each.written else "",
            f"{len(each.objects):,}" if whole else "",
            f"{each.sessions:,}" if whole else "",
            *([str(each.position) if whole else ""] if has_log else []),
            size(each.nbytes) if each.written else "",
        )
    console.print(listed)
    for each in found:
        if each.damage:
            console.print(Text(each.damage, "red"), soft_wrap=True)
    newest = next((each for each in found if not each.damage), None)
    if newest is not None:
        console.print()
        _show_objects(console, newest)


def _show_objects(console: Console, newest: Inspected) -> None:
    title = f"{newest.folder.name} of {newest.owner}, written {newest.written} by release {newest.release}"
    listed = table(title, "object", ("steps", "rows", "tensors", "bytes"), ("class",))
    anonymous = [each for each in newest.objects if not each.name]
    for each in newest.objects:
        if each.name:
            counts = ("" if count is None else f"{count:,}" for count in (each.version, each.rows))
            listed.add_row(Text(each.name), Text(each.class_name), *counts, f"{each.tensors:,}", size(each.nbytes))
    console.print(listed)
    if anonymous:
        nbytes = size(sum(each.nbytes for each in anonymous))
        console.print(f"and {len(anonymous):,} without a name, {nbytes}", highlight=False)
    for lost in newest.left_out:
        console.print(f"not in it: {lost['class']} {lost['name']!r}: {lost['why']}", soft_wrap=True, markup=False)
