"""What `ps-service restore` is given, and what it prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from ps_service.cli.status_tables import table
from ps_service.durability.resharding.placement import Wanted
from ps_wire.errors import InvalidArgumentError

if TYPE_CHECKING:
    from ps_service.durability.resharding.reshard import Result


def wanted(owners: str, objects: Sequence[str], tables: Sequence[str]) -> Wanted:
    """What was asked for. Raises `InvalidArgumentError` if an option does not have its form."""
    names: tuple[str, ...] | int = int(owners) if owners.isdecimal() else _names(owners)
    homes = dict(_pair("--objects", "OLD=NEW", each) for each in objects)
    chosen = dict(_pair("--table", "TABLE=NAME,NAME", each) for each in tables)
    return Wanted(names, homes, {table: _names(owners) for table, owners in chosen.items()})


def show(result: Result) -> None:
    """Prints what each owner has, or would have."""
    placement, console = result.placement, Console()
    shown = table("Rows of tables", "table", placement.owners)
    for name, rows in result.rows.items():
        owners = placement.routings[name].owners
        shown.add_row(Text(name), *(f"{rows[owner]:,}" if owner in owners else "" for owner in placement.owners))
    if result.rows:
        console.print(shown)
    for owner in placement.owners:
        if result.objects[owner]:
            console.print(f"{owner} also has {', '.join(result.objects[owner])}", markup=False, highlight=False)
    if result.left_out:
        count = "one object" if result.left_out == 1 else f"{result.left_out} objects"
        console.print(f"left out: {count} without a name, of trainers")
    for owner, folder in result.folders.items():
        line = f"start it with: ps-service serve --name {owner} --data-dir {folder}"
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if result.folders:
        console.print("each with --listen, --directory and --import as before", highlight=False, soft_wrap=True)
    else:
        console.print("nothing was written (--dry-run)")


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _pair(option: str, form: str, text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (key and equals and value):
        raise InvalidArgumentError(f"{option} has the form {form}, unlike {text!r}")
    return key, value
